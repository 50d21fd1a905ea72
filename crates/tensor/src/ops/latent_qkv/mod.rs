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
/// * `queries [batch, time, query · (plain + rotated)]`
/// * `keys_values [batch, time, key_value · (plain + value_width)]`: each head's key before its value
/// * `rotated [batch, time, rotated]`: the columns that all keys share
pub fn forward([queries, keys_values, rotated]: [&Tensor; 3], heads: LatentHeads) -> Result<Tensor> {
    const OPERATOR: &str = "latent_qkv.forward";
    let operands = [("queries", queries), ("keys_values", keys_values), ("rotated", rotated)];
    let dtype = check::computed(OPERATOR, &operands)?;
    heads.check(OPERATOR, queries)?;
    check::rank(OPERATOR, "queries", queries, 3)?;
    let [batch, time] = [queries.shape().dims()[0], queries.shape().dims()[1]];
    for ((name, tensor), columns) in operands.into_iter().zip(heads.columns()) {
        check::shape(OPERATOR, name, tensor, [batch, time, columns])?;
    }
    let device = queries.device();
    let request = Request::new(Category::Activation, OPERATOR);
    let packed = Tensor::empty(device, [batch, time, heads.packed_columns()], dtype, request)?;
    let operands = [queries, keys_values, rotated];
    match device.backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::forward(operands, heads, &packed)?,
        Backend::Cuda => cuda::forward(OPERATOR, operands, heads, &packed)?,
    }
    Ok(packed)
}

/// Computes the gradients of the operands of [`forward`] from its result's gradient. The gradient of the
/// shared columns is the sum over key heads in order, in f32.
pub fn backward(dy: &Tensor, heads: LatentHeads) -> Result<[Tensor; 3]> {
    const OPERATOR: &str = "latent_qkv.backward";
    let dtype = check::computed(OPERATOR, &[("dy", dy)])?;
    heads.check(OPERATOR, dy)?;
    check::rank(OPERATOR, "dy", dy, 3)?;
    let [batch, time] = [dy.shape().dims()[0], dy.shape().dims()[1]];
    check::shape(OPERATOR, "dy", dy, [batch, time, heads.packed_columns()])?;
    let device = dy.device();
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let gradient = |columns| Tensor::empty(device, [batch, time, columns], dtype, request);
    let [queries, keys_values, rotated] = heads.columns();
    let gradients = [gradient(queries)?, gradient(keys_values)?, gradient(rotated)?];
    match device.backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::backward(dy, heads, &gradients)?,
        Backend::Cuda => cuda::backward(OPERATOR, dy, heads, &gradients)?,
    }
    Ok(gradients)
}
