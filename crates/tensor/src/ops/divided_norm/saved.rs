//! The operands of the backward pass.

use crate::Tensor;

/// The operands of the backward pass of a part.
#[derive(Clone, Copy, Debug)]
pub struct Saved<'a> {
    /// `[.., width]`.
    pub x: &'a Tensor,
    /// `[width]`.
    pub weight: &'a Tensor,
    /// `[rows]`, f32.
    pub rstd: &'a Tensor,
}
