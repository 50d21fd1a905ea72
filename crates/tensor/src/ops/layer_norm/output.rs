//! Results of the forward pass.

use crate::Tensor;

/// Results of the forward pass.
#[derive(Clone, Debug)]
pub struct Output {
    /// The normalised, scaled and shifted input, of the input's shape.
    pub output: Tensor,
    /// Mean of each row, `[rows]` f32.
    pub mean: Tensor,
    /// Reciprocal standard deviation of each row, `[rows]` f32.
    pub rstd: Tensor,
}
