//! Causal multi-head self-attention that never stores its matrix.
//!
//! softmax(q · kᵀ / √d, causal) · v for every head, tile by tile with a running maximum and sum of every row
//! (Milakov and Gimelshein, *Online normalizer calculation for softmax*, 2018; Dao and others,
//! *FlashAttention*, 2022). The backward pass makes the tiles again from the saved log-sum-exp.

mod cpu;
pub(in crate::ops) mod cuda;
mod tile;
mod workspace;

use device::{Backend, Category, DType, Request};

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

/// Attention over `qkv [batch, time, 3·width]`, f32 or bf16, whose thirds are queries, keys and values; head h is columns
/// h·width/heads.. of each third. Scores are scaled by 1/√(width/heads), and a position sees itself and earlier ones.
/// Errors: another shape or type, a width that is not a multiple of `heads`, on a GPU heads of another width than 32, 64
/// or 128 in bf16 or wider than 256 in f32, out of memory.
pub fn forward(qkv: &Tensor, heads: usize) -> Result<Output> {
    const OPERATOR: &str = "attention.forward";
    let dtype = check::computed(OPERATOR, &[("qkv", qkv)])?;
    let geometry = geometry(OPERATOR, qkv, heads)?;
    let device = qkv.device();
    let request = Request::new(Category::Activation, OPERATOR);
    let output = Tensor::empty(device, [geometry.batch, geometry.time, geometry.width], dtype, request)?;
    let logsumexp = Tensor::empty(device, [geometry.batch, heads, geometry.time], DType::F32, request)?;
    match device.backend() {
        Backend::Meta => device.count_flops(geometry.flops(2)),
        Backend::Cpu => cpu::forward(geometry, &qkv.read()?, &mut output.write()?, &mut logsumexp.write()?),
        Backend::Cuda => cuda::forward(OPERATOR, geometry, qkv, &output, &logsumexp)?,
    }
    Ok(Output { output, logsumexp })
}

/// The gradient of `qkv` from that of the output, `dy [batch, time, width]`, and what [`forward`] took and gave.
/// It repeats to the bit. Errors: as [`forward`].
pub fn backward(
    dy: &Tensor,
    qkv: &Tensor,
    output: &Tensor,
    logsumexp: &Tensor,
    heads: usize,
) -> Result<Tensor> {
    const OPERATOR: &str = "attention.backward";
    let dtype = check::computed(OPERATOR, &[("qkv", qkv), ("dy", dy), ("output", output)])?;
    let geometry = geometry(OPERATOR, qkv, heads)?;
    check::dtype(OPERATOR, "logsumexp", logsumexp, DType::F32)?;
    let shape = [geometry.batch, geometry.time, geometry.width];
    check::shape(OPERATOR, "dy", dy, shape)?;
    check::shape(OPERATOR, "output", output, shape)?;
    check::shape(OPERATOR, "logsumexp", logsumexp, [geometry.batch, heads, geometry.time])?;
    let device = qkv.device();
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let dqkv = Tensor::empty(device, qkv.shape(), dtype, request)?;
    let bytes = workspace::backward(dtype, geometry.batch, heads, geometry.time);
    let workspace = Tensor::workspace(device, OPERATOR, bytes)?;
    match device.backend() {
        Backend::Meta => device.count_flops(geometry.flops(5)),
        Backend::Cpu => {
            let (dy, qkv, output, logsumexp) = (dy.read()?, qkv.read()?, output.read()?, logsumexp.read()?);
            let given = cpu::Given { dy: &dy, qkv: &qkv, output: &output, logsumexp: &logsumexp };
            cpu::backward(geometry, given, &mut dqkv.write()?);
        }
        Backend::Cuda => {
            let given = cuda::Given { dy, qkv, output, logsumexp, workspace: &workspace };
            cuda::backward(OPERATOR, geometry, &given, &dqkv)?;
        }
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

    /// Operations of `products` products over the causal half.
    fn flops(&self, products: u64) -> u64 {
        products * (self.batch * self.time * self.time * self.width) as u64
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_width() as f32).sqrt()
    }
}

fn geometry(operator: &'static str, qkv: &Tensor, heads: usize) -> Result<Geometry> {
    check::rank(operator, "qkv", qkv, 3)?;
    let geometry = match *qkv.shape().dims() {
        [batch, time, columns] if heads > 0 && columns.is_multiple_of(3 * heads) => {
            Geometry { batch, time, width: columns / 3, heads }
        }
        _ => {
            let expected = format!("[batch, time, a multiple of 3 · {heads} heads]");
            return Err(check::wrong(operator, "qkv", qkv, expected));
        }
    };
    if qkv.device().is_cuda_like() {
        cuda::check(operator, qkv, &geometry)?;
    }
    Ok(geometry)
}
