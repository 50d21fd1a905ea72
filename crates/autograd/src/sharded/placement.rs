//! Placements: how a value is divided along an axis of ranks.

use collective::Axis;

/// The placement of a value along one axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Every rank has the whole value and its whole gradient.
    #[default]
    Replicate,
    /// Every block is a copy of the whole value, and the blocks' gradients must be summed: the transpose of
    /// [`Placement::Partial`].
    Copied,
    /// Every block is an equal part along a dimension.
    Shard(Dimension),
    /// The value is the sum of its blocks, not yet computed.
    Partial,
}

/// A dimension that is divided into equal parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// Rows, as sharded between tensor-parallel layers. The local rows are one block, `[rows, columns]`.
    Rows {
        /// Number of rows of one sequence, or of one piece of it.
        time: usize,
    },
    /// The last dimension.
    Columns {
        /// Number of shards on all ranks.
        shards: usize,
    },
    /// Positions of sequences.
    Time,
}

/// The placements of a value along the axes whose ranks share a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placements {
    /// Placement along [`Axis::Tensor`].
    pub tensor: Placement,
    /// Placement along [`Axis::Context`].
    pub context: Placement,
}

impl Placements {
    /// Replaces the placement along `axis`.
    #[must_use]
    pub fn with(self, axis: Axis, placement: Placement) -> Self {
        match axis {
            Axis::Tensor => Placements { tensor: placement, ..self },
            _ => Placements { context: placement, ..self },
        }
    }

    /// Returns whether every rank has the value as one block: whole, or as its local rows.
    pub(super) fn is_of_one_block(self) -> bool {
        let is_rows = matches!(self.tensor, Placement::Replicate | Placement::Shard(Dimension::Rows { .. }));
        is_rows && self.context == Placement::Replicate
    }

    /// Returns the placements of an operator's result: along each axis, the placement of the first operand
    /// that is not replicated.
    pub(super) fn of_result(self, other: Self) -> Self {
        let first = |own, other| match own {
            Placement::Replicate => other,
            Placement::Copied if other != Placement::Replicate => other,
            own => own,
        };
        Placements { tensor: first(self.tensor, other.tensor), context: first(self.context, other.context) }
    }
}

/// Index of a block among the local blocks of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockIndex {
    /// Index along [`Axis::Tensor`].
    pub shard: usize,
    /// Index along [`Axis::Context`], in the order of computation; `None` for whole sequences.
    pub piece: Option<usize>,
}
