//! Shards: the parts of tensors that ranks own.

use std::ops::Range;

use collective::Axis;
use tensor::Tensor;

use crate::error::Result;

/// A contiguous part of a tensor that one rank owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The axis along which other ranks own the other elements; `None` if every rank owns the whole tensor.
    pub axis: Option<Axis>,
    /// Range of the owned elements.
    pub range: Range<usize>,
}

impl Shard {
    /// Returns the shard that is a whole tensor of `elements` elements, on every rank.
    pub fn whole(elements: usize) -> Self {
        Shard { axis: None, range: 0..elements }
    }

    /// Returns the shard of the elements `range`; the other elements belong to other ranks along `axis`.
    pub fn along(axis: Axis, range: Range<usize>) -> Self {
        Shard { axis: Some(axis), range }
    }

    /// Returns whether the rank owns none of the tensor.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Returns the owned part of `whole`: a view, or the tensor itself if the rank owns all of it.
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
