//! Causal self-attention without a stored score matrix: multi-head, grouped-query or multi-query.
//!
//! For every query head it computes softmax(q · kᵀ / √width, causal) · v, tile by tile with a running maximum
//! and sum of every row (Milakov and Gimelshein, *Online normalizer calculation for softmax*, 2018; Dao and
//! others, *FlashAttention*, 2022). The backward pass recomputes the tiles from the saved log-sum-exp.

mod cpu;
pub(crate) mod cuda;
mod geometry;
mod heads;
mod hiding;
mod masks;
mod settings;
pub(crate) mod sinks;
mod tile;
mod widths;
mod workspace;

pub use heads::{Heads, Qkv};
pub use masks::Masks;
pub(in crate::ops) use masks::check_sinks;
pub use settings::Settings;
pub use sinks::{accumulate_sinks, sink_gradients};
pub use widths::HeadWidths;

use device::{Backend, Category, DType, Request};

use super::rotary::check_documents;
use super::{check, gpu};
use crate::{Result, Tensor};
use geometry::Geometry;

/// Returns the head widths that have GPU kernels in `dtype`. The CPU takes every width.
pub fn widths(dtype: DType) -> HeadWidths {
    cuda::widths(dtype)
}

/// Result of [`forward`].
#[derive(Clone, Debug)]
pub struct Output {
    /// The output, `[batch, time, heads.query · heads.value_width]`, one query head after another.
    pub output: Tensor,
    /// Log-sum-exp of the scores of every row, `[batch, heads.query, time]` f32.
    pub logsumexp: Tensor,
}

/// Computes attention over queries, keys and values `[batch, time, columns]`, all f32 or all bf16, with
/// columns as in [`Heads`]. A position sees itself and the earlier positions in its window that `masks` do
/// not hide. Packed and separate operands give the same bits.
///
/// With `measures`, a GPU also measures the largest magnitude of a bf16 output ([`Tensor::with_maxima`]).
///
/// # Errors
/// Shapes or types that do not agree, heads that do not divide, a head width that is not in [`widths`] on a
/// GPU, out of memory.
pub fn forward(
    qkv: &Qkv<Tensor>,
    settings: impl Into<Settings>,
    masks: Masks<'_>,
    measures: bool,
) -> Result<Output> {
    const OPERATOR: &str = "attention.forward";
    let (geometry, dtype) = Geometry::check(OPERATOR, qkv, settings.into())?;
    let heads = geometry.heads;
    masks.check(OPERATOR, geometry)?;
    let device = qkv.arrays()[0].device();
    if device.is_cuda_like() {
        cuda::check(OPERATOR, dtype, heads)?;
    }
    let Geometry { batch, time, .. } = geometry;
    let request = Request::new(Category::Activation, OPERATOR);
    let output_blc = Tensor::empty(device, [batch, time, heads.output_columns()], dtype, request)?;
    let output_blc = gpu::with_cells(output_blc, measures && dtype == DType::Bf16, request)?;
    let logsumexp_bhl = Tensor::empty(device, [batch, heads.query, time], DType::F32, request)?;
    device.count_flops(geometry.flops(1, 1));
    match device.backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let arrays = qkv.as_ref().map(Tensor::values).transpose()?;
            let sources = arrays.as_ref().map(|array| &**array);
            let documents_bl = masks.documents.map(Tensor::read::<u32>).transpose()?;
            check_documents(OPERATOR, documents_bl.as_deref(), time)?;
            let sinks_h = masks.sinks.map(Tensor::values).transpose()?;
            let hiding = hiding::Hiding {
                documents: documents_bl.as_deref(),
                dropout: masks.dropout,
                sinks: sinks_h.as_deref(),
            };
            let mut output_blc = output_blc.values_mut()?;
            let mut logsumexp_bhl = logsumexp_bhl.values_mut()?;
            cpu::forward(geometry, sources.arrays(), hiding, &mut output_blc, &mut logsumexp_bhl);
        }
        Backend::Cuda => cuda::forward(OPERATOR, geometry, qkv, masks, &output_blc, &logsumexp_bhl)?,
    }
    Ok(Output { output: output_blc, logsumexp: logsumexp_bhl })
}

/// Computes the gradients of `qkv`, in its layout, from the output's gradient `dy_blc` and the operands and
/// results of [`forward`], with the same settings and masks. Gradients of a shared key or value head are
/// added over its query heads in a fixed order, so that bits repeat; with few key heads, a GPU rounds sums
/// over parts of its query heads to the operands' type before it adds them. With `measures`, a GPU also
/// measures the largest magnitude of each gradient.
pub fn backward(
    dy_blc: &Tensor,
    qkv: &Qkv<Tensor>,
    output_blc: &Tensor,
    logsumexp_bhl: &Tensor,
    settings: impl Into<Settings>,
    masks: Masks<'_>,
    measures: bool,
) -> Result<Qkv<Tensor>> {
    const OPERATOR: &str = "attention.backward";
    let (geometry, dtype) = Geometry::check(OPERATOR, qkv, settings.into())?;
    let heads = geometry.heads;
    masks.check(OPERATOR, geometry)?;
    let Geometry { batch, time, .. } = geometry;
    for (name, tensor) in [("dy", dy_blc), ("output", output_blc)] {
        check::dtype(OPERATOR, name, tensor, dtype)?;
        check::shape(OPERATOR, name, tensor, [batch, time, heads.output_columns()])?;
    }
    check::dtype(OPERATOR, "logsumexp", logsumexp_bhl, DType::F32)?;
    check::shape(OPERATOR, "logsumexp", logsumexp_bhl, [batch, heads.query, time])?;
    let device = dy_blc.device();
    if device.is_cuda_like() {
        cuda::check(OPERATOR, dtype, heads)?;
    }
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let measures = measures && dtype == DType::Bf16;
    let gradient = |array: &Tensor| gpu::with_cells(array.like(dtype, request)?, measures, request);
    let gradients = qkv.as_ref().map(gradient).transpose()?;
    if !geometry.is_whole() {
        // Keys that are hidden from all queries have no part in them.
        gradients.arrays()[geometry.parts[geometry::KEY].array].zero()?;
    }
    let bytes = workspace::backward(dtype, batch, heads.query, time);
    let workspace = Tensor::workspace(device, OPERATOR, bytes)?;
    let [of_keys, of_values] = workspace::parts(dtype, geometry);
    let parts = Tensor::workspace(device, OPERATOR, of_keys + of_values)?;
    device.count_flops(geometry.flops(3, 2));
    match device.backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let arrays = qkv.as_ref().map(Tensor::values).transpose()?;
            let sources = arrays.as_ref().map(|array| &**array);
            let dy_blc = dy_blc.values()?;
            let output_blc = output_blc.values()?;
            let logsumexp_bhl = logsumexp_bhl.values()?;
            let documents_bl = masks.documents.map(Tensor::read::<u32>).transpose()?;
            // The log-sum-exps include the sinks.
            let dropout = masks.dropout;
            let hiding = hiding::Hiding { documents: documents_bl.as_deref(), dropout, sinks: None };
            let qkv = sources.arrays();
            let operands =
                cpu::Operands { dy: &dy_blc, qkv, output: &output_blc, logsumexp: &logsumexp_bhl, hiding };
            let mut targets = gradients.as_ref().map(Tensor::values_mut).transpose()?;
            cpu::backward(geometry, operands, targets.as_mut().map(|target| &mut **target).into_vec());
        }
        Backend::Cuda => {
            let operands = cuda::Operands {
                dy: dy_blc,
                qkv,
                output: output_blc,
                logsumexp: logsumexp_bhl,
                masks,
                workspace: &workspace,
                parts: &parts,
            };
            cuda::backward(OPERATOR, geometry, &operands, &gradients)?;
        }
    }
    Ok(gradients)
}
