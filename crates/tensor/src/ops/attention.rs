//! Causal multi-head self-attention that never stores its matrix.
//!
//! softmax(q · kᵀ / √d, causal) · v for every head, tile by tile with a running maximum and sum of every row
//! (Milakov and Gimelshein, *Online normalizer calculation for softmax*, 2018; Dao and others,
//! *FlashAttention*, 2022). The backward pass makes the tiles again from the saved log-sum-exp.

mod cpu;
mod tile;

use device::{Category, DType, Request};

use super::check;
use crate::{Result, Tensor};

/// What [`forward`] gives.
#[derive(Clone, Debug)]
pub struct Output {
    /// `[batch, time, width]`, the heads side by side.
    pub output: Tensor,
    /// ln Σ e^score of every row, `[batch, heads, time]` f32.
    pub logsumexp: Tensor,
}

/// Attention over `qkv [batch, time, 3·width]` f32, whose thirds are queries, keys and values; head h is columns
/// h·width/heads.. of each third. Scores are scaled by 1/√(width/heads), and a position sees itself and earlier ones.
/// Errors: another shape or type, a width that is not a multiple of `heads`, out of memory.
pub fn forward(qkv: &Tensor, heads: usize) -> Result<Output> {
    const OPERATOR: &str = "attention.forward";
    let geometry = geometry(OPERATOR, qkv, heads)?;
    let device = qkv.device();
    let request = Request::new(Category::Activation, OPERATOR);
    let output = Tensor::empty(device, [geometry.batch, geometry.time, geometry.width], DType::F32, request)?;
    let logsumexp = Tensor::empty(device, [geometry.batch, heads, geometry.time], DType::F32, request)?;
    if !device.is_meta() {
        cpu::forward(geometry, &qkv.read()?, &mut output.write()?, &mut logsumexp.write()?);
    }
    Ok(Output { output, logsumexp })
}

/// The gradient of `qkv` from that of the output, `dy [batch, time, width]`, and what [`forward`] took and gave.
/// Errors: as [`forward`].
pub fn backward(
    dy: &Tensor,
    qkv: &Tensor,
    output: &Tensor,
    logsumexp: &Tensor,
    heads: usize,
) -> Result<Tensor> {
    const OPERATOR: &str = "attention.backward";
    let geometry = geometry(OPERATOR, qkv, heads)?;
    check::f32s(OPERATOR, &[("dy", dy), ("output", output), ("logsumexp", logsumexp)])?;
    let shape = [geometry.batch, geometry.time, geometry.width];
    check::shape(OPERATOR, "dy", dy, shape)?;
    check::shape(OPERATOR, "output", output, shape)?;
    check::shape(OPERATOR, "logsumexp", logsumexp, [geometry.batch, heads, geometry.time])?;
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let dqkv = Tensor::empty(qkv.device(), qkv.shape(), DType::F32, request)?;
    if !qkv.device().is_meta() {
        let (dy, qkv, output, logsumexp) = (dy.read()?, qkv.read()?, output.read()?, logsumexp.read()?);
        let given = cpu::Given { dy: &dy, qkv: &qkv, output: &output, logsumexp: &logsumexp };
        cpu::backward(geometry, given, &mut dqkv.write()?);
    }
    Ok(dqkv)
}

/// The sizes of one call.
#[derive(Clone, Copy)]
struct Geometry {
    batch: usize,
    time: usize,
    width: usize,
    heads: usize,
}

impl Geometry {
    fn head_width(&self) -> usize {
        self.width / self.heads
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_width() as f32).sqrt()
    }
}

fn geometry(operator: &'static str, qkv: &Tensor, heads: usize) -> Result<Geometry> {
    check::f32s(operator, &[("qkv", qkv)])?;
    check::rank(operator, "qkv", qkv, 3)?;
    match *qkv.shape().dims() {
        [batch, time, columns] if heads > 0 && columns.is_multiple_of(3 * heads) => {
            Ok(Geometry { batch, time, width: columns / 3, heads })
        }
        _ => {
            let expected = format!("[batch, time, a multiple of 3 · {heads} heads]");
            Err(check::wrong(operator, "qkv", qkv, expected))
        }
    }
}
