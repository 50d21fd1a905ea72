//! The operands of the norm.

use crate::Tensor;

/// The batch norm after the convolution, all `[channels]`.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// Weight, of the type of the convolution's.
    pub weight: &'a Tensor,
    /// Bias, of the same type.
    pub bias: &'a Tensor,
    /// Running average of the mean, f32.
    pub mean: &'a Tensor,
    /// Running average of the variance, f32.
    pub variance: &'a Tensor,
    /// Number that is added to the variance.
    pub epsilon: f32,
}
