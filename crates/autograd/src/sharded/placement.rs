//! How an axis of ranks divides a value.

use collective::Axis;

/// The placement of a value along one axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Every rank has the whole value and its whole gradient.
    #[default]
    Replicate,
    /// Every block is the whole value, and the gradients of the blocks are to be added up: the transpose of
    /// [`Placement::Partial`].
    Copied,
    /// Every block is an equal part of a dimension.
    Shard(Dimension),
    /// The value is the sum of its blocks, which is still to be made.
    Partial,
}

/// A dimension that an axis divides in equal parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// Rows, between the layers that ranks share. Those that are here are one block, `[rows, columns]`.
    Rows {
        /// Rows of one sequence, or of one piece of it.
        time: usize,
    },
    /// The last dimension.
    Columns {
        /// Number of all shards.
        shards: usize,
    },
    /// The positions of sequences.
    Time,
}

/// The placements of a value along the axes whose ranks share a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placements {
    /// Along [`Axis::Tensor`].
    pub tensor: Placement,
    /// Along [`Axis::Context`].
    pub context: Placement,
}

impl Placements {
    /// Returns the same placements with another one along `axis`.
    #[must_use]
    pub fn with(self, axis: Axis, placement: Placement) -> Self {
        match axis {
            Axis::Tensor => Placements { tensor: placement, ..self },
            _ => Placements { context: placement, ..self },
        }
    }

    /// Returns whether every rank has the value as one block: as a whole, or as the rows that are here.
    pub(super) fn is_of_one_block(self) -> bool {
        let is_rows = matches!(self.tensor, Placement::Replicate | Placement::Shard(Dimension::Rows { .. }));
        is_rows && self.context == Placement::Replicate
    }

    /// The placements of an operator's result: along each axis those of the first operand that is divided.
    pub(super) fn of_result(self, other: Self) -> Self {
        let first = |own, other| match own {
            Placement::Replicate => other,
            Placement::Copied if other != Placement::Replicate => other,
            own => own,
        };
        Placements { tensor: first(self.tensor, other.tensor), context: first(self.context, other.context) }
    }
}

/// The number of a block among those of a value that are here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockIndex {
    /// Along [`Axis::Tensor`].
    pub shard: usize,
    /// Along [`Axis::Context`], in the order in which pieces are computed; `None` for whole sequences.
    pub piece: Option<usize>,
}
