//! The shards of tensor-parallel layers: equal parts of their divided dimensions, over which results are
//! summed.

use collective::{Axis, RankGrid};

/// Numbers of shards of every layer of a model. Ranks along [`Axis::Tensor`] hold consecutive shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shards {
    /// Number of shards on all ranks; 1 if layers are whole.
    pub all: usize,
    /// Number of local shards.
    pub here: usize,
}

impl Shards {
    /// Layers that are whole.
    pub const ONE: Shards = Shards { all: 1, here: 1 };

    /// Returns whether layers are divided.
    #[must_use]
    pub const fn is_divided(self) -> bool {
        self.all > 1
    }

    /// Returns the index along `axis` of the part of a parameter that belongs to local shard `shard`, at
    /// these coordinates of a grid.
    #[must_use]
    pub fn coordinate(self, grid: &RankGrid, shard: usize, axis: Axis) -> usize {
        match axis {
            Axis::Tensor => grid.coordinate(axis) * self.here + shard,
            _ => grid.coordinate(axis),
        }
    }
}
