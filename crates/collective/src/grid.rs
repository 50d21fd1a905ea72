//! The grid of ranks: its axes, their order and sizes, and the coordinates of every rank.
//!
//! All arithmetic on ranks is in this module.
//!
//! ```
//! use collective::{Axis, RankGrid};
//! let grid = RankGrid::new(&[(Axis::Data, 2), (Axis::Pipeline, 2)], 3)?; // the last of 2 × 2 ranks
//! assert_eq!(grid.group(Axis::Data).ranks, [1, 3]); // ranks with the same stage
//! # Ok::<(), collective::CollectiveError>(())
//! ```

use std::fmt;

use crate::error::{CollectiveError, Result};

/// Defines the axes of the grid, each with its name, the slowest-varying first.
macro_rules! axes {
    ($($(#[$documentation:meta])* $axis:ident = $name:literal,)*) => {
        /// An axis of the grid: one way to divide work among ranks.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Axis {
            $($(#[$documentation])* $axis,)*
        }

        impl Axis {
            /// All axes in the order of rank numbering, the slowest-varying first.
            pub const ALL: [Axis; [$($name),*].len()] = [$(Axis::$axis),*];

            /// Name in messages and files, and the key in `[parallel]` that sets the axis's size.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Axis::$axis => $name,)*
                }
            }
        }
    };
}

axes! {
    /// Data parallelism: ranks hold the same stages and run different micro-batches.
    Data = "data",
    /// Pipeline parallelism: ranks hold different stages of one model.
    Pipeline = "pipeline",
    /// Context parallelism: ranks hold the same parameters and different pieces of each sequence.
    Context = "context",
    /// Tensor parallelism: neighbouring ranks hold different parts of each layer.
    Tensor = "tensor",
}

/// Number of axes.
pub(crate) const AXES: usize = Axis::ALL.len();

impl Axis {
    /// Returns whether ranks along the axis run collectives. Pipeline ranks only send and receive.
    pub(crate) const fn runs_collectives(self) -> bool {
        !matches!(self, Axis::Pipeline)
    }

    /// Returns whether ranks along the axis compute different examples; gradients are then summed over it.
    pub const fn divides_examples(self) -> bool {
        matches!(self, Axis::Data)
    }

    /// Index into arrays with one entry per axis.
    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

/// Sizes of a grid's axes, in the order of rank numbering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridShape {
    /// Every axis with its number of ranks, the slowest-varying first.
    axes: [(Axis, usize); AXES],
}

impl GridShape {
    /// Creates a grid in the order of [`Axis::ALL`] from the size of each axis.
    pub fn from_sizes(size: impl Fn(Axis) -> usize) -> Self {
        GridShape { axes: Axis::ALL.map(|axis| (axis, size(axis))) }
    }

    /// Creates a grid from a list of axes, the slowest-varying first. Unlisted axes have size 1.
    ///
    /// # Errors
    /// An axis is listed twice.
    pub fn new(axes: &[(Axis, usize)]) -> Result<Self> {
        let is_listed = |axis: Axis, list: &[(Axis, usize)]| list.iter().any(|(other, _)| *other == axis);
        let twice = (1..axes.len()).find(|index| is_listed(axes[*index].0, &axes[..*index]));
        if let Some(index) = twice {
            return Err(CollectiveError::Grid(format!("axis {} is listed twice", axes[index].0.name())));
        }
        let others = Axis::ALL.into_iter().filter(|axis| !is_listed(*axis, axes)).map(|axis| (axis, 1));
        let mut shape = GridShape::from_sizes(|_| 1);
        shape.axes.iter_mut().zip(axes.iter().copied().chain(others)).for_each(|(entry, axis)| *entry = axis);
        Ok(shape)
    }

    /// Returns the grid with another size along `axis`.
    #[must_use]
    pub fn with_size(mut self, axis: Axis, size: usize) -> Self {
        self.axes.iter_mut().filter(|(other, _)| *other == axis).for_each(|entry| entry.1 = size);
        self
    }

    /// Resizes `axis` so that the grid has `ranks` ranks in all; `None` if no size does.
    #[must_use]
    pub fn filled_along(self, axis: Axis, ranks: usize) -> Option<Self> {
        let others = self.with_size(axis, 1).world_size();
        (others > 0 && ranks.is_multiple_of(others)).then(|| self.with_size(axis, ranks / others))
    }

    /// The axes with their numbers of ranks, the slowest-varying first.
    pub fn axes(&self) -> impl Iterator<Item = (Axis, usize)> + use<> {
        self.axes.into_iter()
    }

    /// The names of the axes with their numbers of ranks, the slowest-varying first.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, usize)> + use<> {
        self.axes().map(|(axis, size)| (axis.name(), size))
    }

    /// Number of ranks along an axis.
    pub fn size(&self, axis: Axis) -> usize {
        self.size_over(&[axis])
    }

    /// Number of ranks in a group over several axes: the product of their sizes.
    pub fn size_over(&self, axes: &[Axis]) -> usize {
        self.sizes_of(|axis| axes.contains(&axis))
    }

    /// Number of ranks in the grid.
    pub fn world_size(&self) -> usize {
        self.sizes_of(|_| true)
    }

    /// Returns the grid with the coordinates of `rank`.
    ///
    /// # Errors
    /// The rank is outside the grid, or the grid is empty or too large.
    pub fn seen_from(self, rank: usize) -> Result<RankGrid> {
        if rank < self.world_size() && self.world_size() < usize::MAX {
            return Ok(RankGrid { shape: self, rank });
        }
        Err(CollectiveError::Grid(format!("rank {rank} is not one of {self} ranks")))
    }

    /// Multiplies the sizes of the axes for which `counts`, saturating at [`usize::MAX`].
    fn sizes_of(&self, counts: impl Fn(Axis) -> bool) -> usize {
        let sizes = self.axes().filter(|(axis, _)| counts(*axis)).map(|(_, size)| size);
        sizes.fold(1, usize::saturating_mul)
    }

    /// Difference in rank number between neighbours along an axis.
    fn stride(&self, axis: Axis) -> usize {
        let faster = self.axes().skip_while(|(other, _)| *other != axis).skip(1);
        faster.map(|(_, size)| size).product()
    }

    fn coordinate(&self, axis: Axis, rank: usize) -> usize {
        rank / self.stride(axis) % self.size(axis)
    }
}

/// Formats the sizes in the order of the axes, such as `2 × 4`.
impl fmt::Display for GridShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<_> = self.axes().map(|(_, size)| size.to_string()).collect();
        f.write_str(&sizes.join(" × "))
    }
}

/// The ranks of a group along one axis or several, and this rank's index among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// World numbers of the ranks, ascending.
    pub ranks: Vec<usize>,
    /// Index of this rank in `ranks`.
    pub index: usize,
}

/// The grid of ranks as seen by one rank. Immutable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankGrid {
    shape: GridShape,
    rank: usize,
}

impl RankGrid {
    /// Creates the grid with these axes ([`GridShape::new`]) as seen by rank `rank`.
    ///
    /// # Errors
    /// Errors of [`GridShape::new`] and [`GridShape::seen_from`].
    pub fn new(axes: &[(Axis, usize)], rank: usize) -> Result<Self> {
        GridShape::new(axes)?.seen_from(rank)
    }

    /// Sizes of the axes.
    pub fn shape(&self) -> GridShape {
        self.shape
    }

    /// This rank's number in the world.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks in the world.
    pub fn world_size(&self) -> usize {
        self.shape.world_size()
    }

    /// Number of ranks along an axis.
    pub fn size(&self, axis: Axis) -> usize {
        self.shape.size(axis)
    }

    /// This rank's coordinate along an axis, from 0.
    pub fn coordinate(&self, axis: Axis) -> usize {
        self.shape.coordinate(axis, self.rank)
    }

    /// This rank's index in its group over some axes ([`Group::ranks`]).
    pub fn coordinate_over(&self, axes: &[Axis]) -> usize {
        let listed = self.shape.axes().filter(|(axis, _)| axes.contains(axis));
        listed.fold(0, |coordinate, (axis, size)| coordinate * size + self.coordinate(axis))
    }

    /// Returns the same grid as seen by another rank.
    ///
    /// # Errors
    /// The rank is outside the grid.
    pub fn seen_from(&self, rank: usize) -> Result<Self> {
        self.shape.seen_from(rank)
    }

    /// Returns the world rank at these coordinates, each below its axis's size. Unlisted axes keep this
    /// rank's coordinates.
    pub fn rank_at(&self, coordinates: &[(Axis, usize)]) -> usize {
        coordinates.iter().fold(self.rank, |rank, (axis, coordinate)| {
            let stride = self.shape.stride(*axis);
            rank - self.shape.coordinate(*axis, rank) * stride + coordinate * stride
        })
    }

    /// Returns the ranks that differ from this rank along `axis` only, including this rank.
    pub fn group(&self, axis: Axis) -> Group {
        self.group_over(&[axis])
    }

    /// Returns the ranks that differ from this rank along some axes only, including this rank. The order of
    /// `axes` has no effect.
    pub fn group_over(&self, axes: &[Axis]) -> Group {
        let first = axes.iter().map(|axis| (*axis, 0)).collect::<Vec<_>>();
        let listed = self.shape.axes().filter(|(axis, _)| axes.contains(axis));
        let ranks = listed.fold(vec![self.rank_at(&first)], |ranks, (axis, size)| {
            let stride = self.shape.stride(axis);
            ranks.into_iter().flat_map(|rank| (0..size).map(move |index| rank + index * stride)).collect()
        });
        Group { ranks, index: self.coordinate_over(axes) }
    }

    /// Returns the groups of all ranks along an axis, ordered by their first ranks.
    pub fn groups(&self, axis: Axis) -> Vec<Vec<usize>> {
        self.groups_over(&[axis])
    }

    /// Divides each group along an axis into groups of `size` neighbours.
    pub fn neighbours(&self, axis: Axis, size: usize) -> Vec<Vec<usize>> {
        self.neighbours_over(&[axis], size)
    }

    /// Divides each group over some axes into groups of `size` neighbours.
    pub fn neighbours_over(&self, axes: &[Axis], size: usize) -> Vec<Vec<usize>> {
        let groups = self.groups_over(axes).into_iter();
        groups
            .flat_map(|group| group.chunks(size.max(1)).map(<[usize]>::to_vec).collect::<Vec<_>>())
            .collect()
    }

    /// Returns the groups of ranks with equal index within their [`RankGrid::neighbours`].
    pub fn across_neighbours(&self, axis: Axis, size: usize) -> Vec<Vec<usize>> {
        self.across_neighbours_over(&[axis], size)
    }

    /// Returns the groups of ranks with equal index within their [`RankGrid::neighbours_over`].
    pub fn across_neighbours_over(&self, axes: &[Axis], size: usize) -> Vec<Vec<usize>> {
        let across = |group: Vec<usize>| {
            let with_index = |index: usize| group.iter().skip(index).step_by(size.max(1)).copied().collect();
            (0..size.min(group.len())).map(with_index).collect::<Vec<_>>()
        };
        self.groups_over(axes).into_iter().flat_map(across).collect()
    }

    /// Returns the groups of all ranks over some axes, ordered by their first ranks.
    pub fn groups_over(&self, axes: &[Axis]) -> Vec<Vec<usize>> {
        let is_first = |rank: &usize| axes.iter().all(|axis| self.shape.coordinate(*axis, *rank) == 0);
        let firsts = (0..self.world_size()).filter(is_first);
        firsts.map(|rank| RankGrid { rank, ..*self }.group_over(axes).ranks).collect()
    }
}

#[cfg(test)]
mod tests;
