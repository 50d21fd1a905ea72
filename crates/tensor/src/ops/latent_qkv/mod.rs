//! Queries, keys and values of latent attention (DeepSeek-AI, *DeepSeek-V2*, 2024), packed into one array for
//! attention. The keys of all heads share their rotated columns.
//!
//! Operands have the layout of Hugging Face's checkpoints: a head is `[plain | rotated]`, with rotated
//! columns in neighbouring pairs if they are interleaved. In the result a head is `[rotated | plain]`,
//! half-split, as [`rotary`](super::rotary) takes it.

mod cpu;
pub(crate) mod cuda;
mod heads;

pub use heads::LatentHeads;

use device::{Backend, Category, Request};

use super::check;
use crate::{Result, Tensor};

/// Packs all queries, then all keys, then all values as `[batch, time, packed columns]`.
///
/// * `queries_blc [batch, time, query · (plain + rotated)]`
/// * `keys_values_blc [batch, time, key_value · (plain + value_width)]`: each head's key before its value
/// * `rotated_blk [batch, time, rotated]`: the columns that all keys share
pub fn forward(
    [queries_blc, keys_values_blc, rotated_blk]: [&Tensor; 3],
    heads: LatentHeads,
) -> Result<Tensor> {
    const OPERATOR: &str = "latent_qkv.forward";
    let operands = [("queries", queries_blc), ("keys_values", keys_values_blc), ("rotated", rotated_blk)];
    let dtype = check::computed(OPERATOR, &operands)?;
    heads.check(OPERATOR, queries_blc)?;
    check::rank(OPERATOR, "queries", queries_blc, 3)?;
    let [batch, time] = [queries_blc.shape().dims()[0], queries_blc.shape().dims()[1]];
    for ((name, tensor), columns) in operands.into_iter().zip(heads.columns()) {
        check::shape(OPERATOR, name, tensor, [batch, time, columns])?;
    }
    let device = queries_blc.device();
    let request = Request::new(Category::Activation, OPERATOR);
    let packed_blc = Tensor::empty(device, [batch, time, heads.packed_columns()], dtype, request)?;
    let operands = [queries_blc, keys_values_blc, rotated_blk];
    match device.backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::forward(operands, heads, &packed_blc)?,
        Backend::Cuda => cuda::forward(OPERATOR, operands, heads, &packed_blc)?,
    }
    Ok(packed_blc)
}

/// Computes the gradients of the operands of [`forward`] from its result's gradient. The gradient of the
/// shared columns is the sum over key heads in order, in f32.
pub fn backward(dy_blc: &Tensor, heads: LatentHeads) -> Result<[Tensor; 3]> {
    const OPERATOR: &str = "latent_qkv.backward";
    let dtype = check::computed(OPERATOR, &[("dy", dy_blc)])?;
    heads.check(OPERATOR, dy_blc)?;
    check::rank(OPERATOR, "dy", dy_blc, 3)?;
    let [batch, time] = [dy_blc.shape().dims()[0], dy_blc.shape().dims()[1]];
    check::shape(OPERATOR, "dy", dy_blc, [batch, time, heads.packed_columns()])?;
    let device = dy_blc.device();
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let gradient = |columns| Tensor::empty(device, [batch, time, columns], dtype, request);
    let [queries, keys_values, rotated] = heads.columns();
    let gradients = [gradient(queries)?, gradient(keys_values)?, gradient(rotated)?];
    match device.backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::backward(dy_blc, heads, &gradients)?,
        Backend::Cuda => cuda::backward(OPERATOR, dy_blc, heads, &gradients)?,
    }
    Ok(gradients)
}
