//! The shards of layers: equal parts of their divided dimensions, over which sums are defined.

use collective::{Axis, RankGrid};

/// The shards of every layer of a model, and those of them that are here. The others are along
/// [`Axis::Tensor`], in the order of the coordinates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shards {
    /// All shards; 1: layers are whole.
    pub all: usize,
    /// The shards that are here.
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

    /// Returns the index along `axis` of the part of a parameter that shard `shard` of those at these
    /// coordinates of a grid holds.
    #[must_use]
    pub fn coordinate(self, grid: &RankGrid, shard: usize, axis: Axis) -> usize {
        match axis {
            Axis::Tensor => grid.coordinate(axis) * self.here + shard,
            _ => grid.coordinate(axis),
        }
    }
}
