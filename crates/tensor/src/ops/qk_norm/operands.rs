//! Weights and results of the normalisation of queries and keys.

use crate::Tensor;

/// Weights of query heads and of key heads, each `[heads.width]`.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    /// Weight of query heads.
    pub query: &'a Tensor,
    /// Weight of key heads.
    pub key: &'a Tensor,
}

/// Results of [`forward`](super::forward).
#[derive(Clone, Debug)]
pub struct Output {
    /// Packed queries, keys and values for attention, of the input's shape.
    pub output: Tensor,
    /// Reciprocal root mean square of every head, `[rows, heads.query + heads.key_value]` f32.
    pub rstd: Tensor,
}

/// Results of [`backward_input`](super::backward_input).
#[derive(Debug)]
pub struct Gradients {
    /// Gradient of the packed input.
    pub input: Tensor,
    /// Partial sums of the weights' gradients for [`backward_weight`](super::backward_weight): `[runs, 2 ·
    /// heads.width]` f32.
    pub sums: Tensor,
}
