//! The part of a tensor that one rank owns.

use std::ops::Range;

use tensor::Tensor;

use crate::error::Result;
use crate::grid::Axis;

/// A contiguous part of a tensor that one rank owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The axis along which other ranks own the other elements; `None` where every rank owns the whole
    /// tensor.
    pub axis: Option<Axis>,
    /// The elements owned.
    pub range: Range<usize>,
}

impl Shard {
    /// All of a tensor of so many elements, on every rank.
    pub fn whole(elements: usize) -> Self {
        Shard { axis: None, range: 0..elements }
    }

    /// The elements `range` of a tensor, whose other elements belong to other ranks along `axis`.
    pub fn along(axis: Axis, range: Range<usize>) -> Self {
        Shard { axis: Some(axis), range }
    }

    /// Returns true if the rank owns nothing of the tensor.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The owned part of `whole`: a view, or the tensor itself where that is all of it.
    ///
    /// # Errors
    /// A tensor that is shorter than the range's end.
    pub fn of(&self, whole: &Tensor) -> Result<Tensor> {
        if self.range.len() == whole.elements() {
            return Ok(whole.clone());
        }
        Ok(whole.view(self.range.start, [self.range.len()])?)
    }
}
