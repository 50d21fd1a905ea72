//! Shards: the parts of tensors owned by ranks.

use std::ops::Range;

use collective::Axis;
use tensor::Tensor;

use crate::error::Result;

/// A contiguous part of a tensor owned by one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The axis over which the tensor is sharded; `None` if every rank owns the whole tensor.
    pub axis: Option<Axis>,
    /// Range of the owned elements.
    pub range: Range<usize>,
}

impl Shard {
    /// Creates the shard of a whole tensor of `elements` elements, owned by every rank.
    pub fn whole(elements: usize) -> Self {
        Shard { axis: None, range: 0..elements }
    }

    /// Creates the shard of the elements `range`; other ranks along `axis` own the other elements.
    pub fn along(axis: Axis, range: Range<usize>) -> Self {
        Shard { axis: Some(axis), range }
    }

    /// Returns whether the rank owns no element.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Returns the owned part of `whole`: a view, or the tensor itself if the rank owns all of it.
    ///
    /// # Errors
    /// The tensor is shorter than the range's end.
    pub fn slice(&self, whole: &Tensor) -> Result<Tensor> {
        if self.range.len() == whole.elements() {
            return Ok(whole.clone());
        }
        Ok(whole.view(self.range.start, [self.range.len()])?)
    }
}
