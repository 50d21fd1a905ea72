//! Variables: the blocks of a value on a tape.

use collective::Axis;
use tensor::Tensor;

use super::placement::{Placement, Placements};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValueId {
    pub(crate) tape: u32,
    pub(crate) index: u32,
}

/// Identity of a block without its tensor. Kept by operators that overwrite their input, and by a pipeline
/// stage that sends an output and receives its gradient.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    pub(crate) id: Option<ValueId>,
    /// Whether the value has several blocks or is not of one block; operators must then use
    /// [`map`](crate::map).
    pub(crate) is_divided: bool,
}

/// A value on a tape: its local blocks, all of one shape and dtype, ordered by shard and within a shard by
/// piece. A block without an identity has no gradient: a constant, or a value of a tape that records nothing.
///
/// Operators take variables by value; clone a variable to keep it. A variable keeps its tensors' memory
/// alive.
#[derive(Clone, Debug)]
pub struct Var {
    pub(crate) tensor: Tensor,
    pub(crate) id: Option<ValueId>,
    /// The blocks after the first.
    others: Vec<(Tensor, Option<ValueId>)>,
    placements: Placements,
}

impl Var {
    /// Creates a value of one block.
    pub(crate) fn new(tensor: Tensor, id: Option<ValueId>) -> Self {
        Var { tensor, id, others: Vec::new(), placements: Placements::default() }
    }

    /// Joins values of one block each into one value; `None` if there are none.
    pub(crate) fn from_blocks(blocks: impl IntoIterator<Item = Var>) -> Option<Self> {
        let mut blocks = blocks.into_iter();
        let first = blocks.next()?;
        Some(Var { others: blocks.map(|block| (block.tensor, block.id)).collect(), ..first })
    }

    /// Splits the value into its local blocks, each a value with the same placements.
    pub fn into_blocks(self) -> impl Iterator<Item = Var> {
        let Var { tensor, id, others, placements } = self;
        let block = move |(tensor, id)| Var { tensor, id, others: Vec::new(), placements };
        std::iter::once((tensor, id)).chain(others).map(block)
    }

    /// Number of local blocks.
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

    /// Sets the placement along `axis` without moving data; the blocks must match it.
    #[must_use]
    pub fn with_placement(self, axis: Axis, placement: Placement) -> Self {
        Var { placements: self.placements.with(axis, placement), ..self }
    }

    pub(crate) fn with_placements(self, placements: Placements) -> Self {
        Var { placements, ..self }
    }

    /// The tensor of the first block.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Returns the tensor of the first block, dropping the identity.
    pub fn into_tensor(self) -> Tensor {
        self.tensor
    }

    /// The identity of the value, for operators on a single block.
    pub fn source(&self) -> Source {
        let is_divided = !self.others.is_empty() || !self.placements.is_of_one_block();
        Source { id: self.id, is_divided }
    }

    /// The identity of the first block, for operators that handle blocks themselves.
    pub(crate) fn block_source(&self) -> Source {
        Source { id: self.id, is_divided: false }
    }

    /// Returns whether backward computes a gradient of the variable.
    pub fn wants_gradient(&self) -> bool {
        self.id.is_some() || self.others.iter().any(|(_, id)| id.is_some())
    }
}
