//! Destinations of weight gradients.

use crate::Tensor;

/// The tensor that a weight's gradient is written to, and whether it is added.
#[derive(Clone, Debug)]
pub struct GradientTarget {
    /// A tensor of the weight's shape, often a view into a bucket.
    pub tensor: Tensor,
    /// Whether the gradient is added to the tensor instead of overwriting it.
    pub accumulate: bool,
}
