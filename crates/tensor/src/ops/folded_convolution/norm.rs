//! The operands of the norm.

use crate::Tensor;

/// The batch norm after the convolution. All tensors are `[channels]`.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// Weight, of the convolution weight's type.
    pub weight: &'a Tensor,
    /// Bias, of the same type.
    pub bias: &'a Tensor,
    /// Running average of the mean, f32.
    pub mean: &'a Tensor,
    /// Running average of the variance, f32.
    pub variance: &'a Tensor,
    /// Number added to the variance before the square root.
    pub epsilon: f32,
}
