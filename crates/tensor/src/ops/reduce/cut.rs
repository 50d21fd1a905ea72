//! The dimension that a reduction removes.

use crate::ops::check;
use crate::{Result, Shape, Tensor};

/// Function that reduces the elements along a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// The sum, in f32, rounded once.
    Sum,
    /// The maximum.
    Maximum,
}

/// An array viewed as `[outer, count, inner]`, reduced over `count`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) results: usize,
    pub(super) count: usize,
    pub(super) inner: usize,
}

impl Cut {
    /// Views `x` for a reduction of dimension `axis`, and returns the shape of the result.
    ///
    /// # Errors
    /// No such dimension, or a dimension without elements.
    pub(super) fn at_axis(operator: &'static str, x: &Tensor, axis: usize) -> Result<(Self, Shape)> {
        let dims = x.shape();
        let dims = dims.dims();
        let missing = || check::wrong(operator, "x", x, format!("a dimension {axis}"));
        let count = dims.get(axis).copied().filter(|count| *count > 0).ok_or_else(missing)?;
        let shape = x.shape().with(axis, 1).ok_or_else(missing)?;
        let inner = dims[axis + 1..].iter().product();
        Ok((Cut { results: shape.elements(), count, inner }, shape))
    }

    /// Returns the index of the first term of a result. The other terms follow at distances of `inner`.
    pub(super) fn first(&self, result: usize) -> usize {
        result / self.inner * self.count * self.inner + result % self.inner
    }
}
