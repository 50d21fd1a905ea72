//! The operands of the backward pass.

use crate::Tensor;

/// Operands of the backward pass of one shard.
#[derive(Clone, Copy, Debug)]
pub struct Saved<'a> {
    /// Input of the forward pass, `[.., width]`.
    pub x: &'a Tensor,
    /// Weight of the norm, `[width]`.
    pub weight: &'a Tensor,
    /// Reciprocal root mean square of each row, `[rows]` f32.
    pub rstd: &'a Tensor,
}
