//! Variables: the blocks of a value on a tape.

use collective::Axis;
use tensor::Tensor;

use super::placement::{Placement, Placements};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValueId {
    pub(crate) tape: u32,
    pub(crate) index: u32,
}

/// Identity of a block, without its tensor. Operators that overwrite their input keep only this, and so
/// does a pipeline stage that sends an output and receives its gradient.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    pub(crate) id: Option<ValueId>,
    /// Whether the value has other blocks, or is computed in the pass of a block.
    pub(crate) is_divided: bool,
}

/// A value on a tape: its blocks that are here, shard by shard and of each shard piece by piece, all of one
/// shape and type. A block without an identity has no gradient: a constant, or one of a tape that records
/// nothing.
///
/// Operators take variables by value: pass a clone to keep one. A variable holds its tensors' memory.
#[derive(Clone, Debug)]
pub struct Var {
    pub(crate) tensor: Tensor,
    pub(crate) id: Option<ValueId>,
    /// The blocks after the first.
    others: Vec<(Tensor, Option<ValueId>)>,
    placements: Placements,
}

impl Var {
    /// Returns a value of one block.
    pub(crate) fn new(tensor: Tensor, id: Option<ValueId>) -> Self {
        Var { tensor, id, others: Vec::new(), placements: Placements::default() }
    }

    /// Joins values of one block each to one of several; `None` without any.
    pub(crate) fn from_blocks(blocks: impl IntoIterator<Item = Var>) -> Option<Self> {
        let mut blocks = blocks.into_iter();
        let first = blocks.next()?;
        Some(Var { others: blocks.map(|block| (block.tensor, block.id)).collect(), ..first })
    }

    /// The blocks that are here, each as a value of its own with the same placements.
    pub fn into_blocks(self) -> impl Iterator<Item = Var> {
        let Var { tensor, id, others, placements } = self;
        let block = move |(tensor, id)| Var { tensor, id, others: Vec::new(), placements };
        std::iter::once((tensor, id)).chain(others).map(block)
    }

    /// Number of blocks that are here.
    pub fn blocks(&self) -> usize {
        1 + self.others.len()
    }

    /// The placements.
    pub fn placements(&self) -> Placements {
        self.placements
    }

    /// The placement along `axis`.
    pub fn placement(&self, axis: Axis) -> Placement {
        match axis {
            Axis::Tensor => self.placements.tensor,
            _ => self.placements.context,
        }
    }

    /// Returns the same blocks as a value with another placement along `axis`. It moves nothing: the caller
    /// knows what the blocks are.
    #[must_use]
    pub fn with_placement(self, axis: Axis, placement: Placement) -> Self {
        Var { placements: self.placements.with(axis, placement), ..self }
    }

    pub(crate) fn with_placements(self, placements: Placements) -> Self {
        Var { placements, ..self }
    }

    /// The values of the first block.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// The values of the first block, without the identity.
    pub fn into_tensor(self) -> Tensor {
        self.tensor
    }

    /// The identity of the value, if it is one block.
    pub fn source(&self) -> Source {
        let is_divided = !self.others.is_empty() || !self.placements.is_of_one_block();
        Source { id: self.id, is_divided }
    }

    /// The identity of the first block, for an operator that knows blocks.
    pub(crate) fn block_source(&self) -> Source {
        Source { id: self.id, is_divided: false }
    }

    /// Returns whether the variable has a gradient.
    pub fn wants_gradient(&self) -> bool {
        self.id.is_some() || self.others.iter().any(|(_, id)| id.is_some())
    }
}
