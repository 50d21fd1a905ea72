//! Destinations of weight gradients.

use crate::Tensor;

/// The tensor that receives a weight's gradient, and whether the gradient is added to it.
#[derive(Clone, Debug)]
pub struct GradientTarget {
    /// A tensor of the weight's shape, often a view into a bucket.
    pub tensor: Tensor,
    /// Whether the gradient is added to the tensor; otherwise it overwrites the tensor.
    pub accumulate: bool,
}

impl GradientTarget {
    /// Returns the bytes moved here: the gradient is written, and read before if it is added to.
    pub(crate) fn moved(&self) -> u64 {
        self.tensor.bytes() as u64 * if self.accumulate { 2 } else { 1 }
    }
}
