//! Results of the forward pass.

use crate::Tensor;

/// Results of the forward pass.
#[derive(Clone, Debug)]
pub struct Output {
    /// The normalised and scaled input, of the input's shape.
    pub output: Tensor,
    /// Reciprocal root mean square of each row, `[rows]` f32.
    pub rstd: Tensor,
}
