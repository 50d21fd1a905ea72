//! Destinations of weight gradients.

use crate::Tensor;

/// The tensor that a weight's gradient is written to, and how.
#[derive(Clone, Debug)]
pub struct GradientTarget {
    /// A tensor of the weight's shape, often a view into a bucket.
    pub tensor: Tensor,
    /// True: add to what is there. False: overwrite it.
    pub accumulate: bool,
}
