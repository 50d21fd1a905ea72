//! The lanes of layers: equal parts of their divided dimensions, over which sums are defined.

use collective::{Axis, RankGrid};

/// The lanes of every layer of a model, and those of them that are here. The others are along
/// [`Axis::Tensor`], in the order of the coordinates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lanes {
    /// All lanes; 1: layers are not divided.
    pub all: usize,
    /// The lanes that are here.
    pub here: usize,
}

impl Lanes {
    /// Layers that are not divided.
    pub const ONE: Lanes = Lanes { all: 1, here: 1 };

    /// Returns whether layers are divided.
    #[must_use]
    pub const fn is_divided(self) -> bool {
        self.all > 1
    }

    /// Returns the index along `axis` of the part of a parameter that lane `lane` of those at these
    /// coordinates of a grid holds.
    #[must_use]
    pub fn coordinate(self, grid: &RankGrid, lane: usize, axis: Axis) -> usize {
        match axis {
            Axis::Tensor => grid.coordinate(axis) * self.here + lane,
            _ => grid.coordinate(axis),
        }
    }
}
