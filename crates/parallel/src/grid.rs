//! The grid of ranks: named axes, and the coordinates of every rank along them.

use crate::error::{ParallelError, Result};

/// An axis of the grid: a way in which ranks share the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Axis {
    /// Ranks hold the same stages and run different micro-batches.
    Data,
    /// Ranks hold different stages of one model.
    Pipeline,
}

/// Number of axes.
pub(crate) const AXES: usize = Axis::ALL.len();

impl Axis {
    /// All axes.
    pub const ALL: [Axis; 2] = [Axis::Data, Axis::Pipeline];

    /// Name used in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Axis::Data => "data",
            Axis::Pipeline => "pipeline",
        }
    }

    /// Index into arrays with one entry per axis.
    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

/// The ranks of the world that differ along one axis only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The axis of the group.
    pub axis: Axis,
    /// World numbers of the ranks, by coordinate along the axis.
    pub ranks: Vec<usize>,
    /// Coordinate of this rank.
    pub index: usize,
}

/// The grid of ranks as seen by one rank: an immutable value that is passed down.
///
/// All arithmetic on ranks is here. Ranks are numbered with the last listed axis varying fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankGrid {
    /// Number of ranks along each axis.
    sizes: [usize; AXES],
    /// Distance in rank numbers between neighbours along each axis.
    strides: [usize; AXES],
    world_size: usize,
    rank: usize,
}

impl RankGrid {
    /// Creates the view of rank `rank` of a grid with these sizes; the first axis varies slowest. An axis
    /// that is not listed has size 1.
    ///
    /// # Errors
    /// A rank outside the grid, an empty grid, or an axis that is listed twice.
    pub fn new(axes: &[(Axis, usize)], rank: usize) -> Result<Self> {
        let (mut sizes, mut strides) = ([1; AXES], [1; AXES]);
        let mut world_size: usize = 1;
        for (place, (axis, size)) in axes.iter().enumerate().rev() {
            if axes[..place].iter().any(|(other, _)| other == axis) {
                return Err(ParallelError::Grid(format!("axis {} is listed twice", axis.name())));
            }
            (sizes[axis.index()], strides[axis.index()]) = (*size, world_size);
            world_size = world_size.checked_mul(*size).unwrap_or(0);
        }
        if rank < world_size {
            return Ok(RankGrid { sizes, strides, world_size, rank });
        }
        let sizes: Vec<_> = axes.iter().map(|(_, size)| size.to_string()).collect();
        Err(ParallelError::Grid(format!("rank {rank} is not one of {} ranks", sizes.join(" × "))))
    }

    /// This rank's number in the world.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks in the world.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// Number of ranks along an axis.
    pub fn size(&self, axis: Axis) -> usize {
        self.sizes[axis.index()]
    }

    /// This rank's coordinate along an axis, from 0.
    pub fn coordinate(&self, axis: Axis) -> usize {
        self.coordinate_of(axis, self.rank)
    }

    fn coordinate_of(&self, axis: Axis, rank: usize) -> usize {
        rank / self.strides[axis.index()] % self.size(axis)
    }

    /// Returns the same grid as seen by another rank.
    ///
    /// # Errors
    /// A rank outside the grid.
    pub fn seen_from(&self, rank: usize) -> Result<Self> {
        if rank < self.world_size {
            return Ok(RankGrid { rank, ..*self });
        }
        Err(ParallelError::Grid(format!("rank {rank} is not one of {} ranks", self.world_size)))
    }

    /// Returns the rank of the world with these coordinates, each below its axis's size. Along other axes it
    /// has this rank's coordinates.
    pub fn rank_at(&self, coordinates: &[(Axis, usize)]) -> usize {
        coordinates.iter().fold(self.rank, |rank, (axis, coordinate)| {
            let stride = self.strides[axis.index()];
            rank - self.coordinate_of(*axis, rank) * stride + coordinate * stride
        })
    }

    /// Returns the ranks that differ from this one along `axis` only, including this one.
    pub fn group(&self, axis: Axis) -> Group {
        let ranks = (0..self.size(axis)).map(|coordinate| self.rank_at(&[(axis, coordinate)])).collect();
        Group { axis, ranks, index: self.coordinate(axis) }
    }

    /// Returns the groups of all ranks along an axis, ordered by their first ranks.
    pub fn groups(&self, axis: Axis) -> Vec<Vec<usize>> {
        let firsts = (0..self.world_size).filter(|rank| self.coordinate_of(axis, *rank) == 0);
        firsts.map(|rank| RankGrid { rank, ..*self }.group(axis).ranks).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Axis, RankGrid};

    const AXES: [(Axis, usize); 2] = [(Axis::Data, 3), (Axis::Pipeline, 2)];

    #[test]
    fn pipeline_neighbours_are_adjacent_ranks() {
        for rank in 0..6 {
            let grid = RankGrid::new(&AXES, rank).unwrap();
            assert_eq!((grid.coordinate(Axis::Data), grid.coordinate(Axis::Pipeline)), (rank / 2, rank % 2));
            assert_eq!(grid.group(Axis::Pipeline).ranks, [rank / 2 * 2, rank / 2 * 2 + 1]);
            assert_eq!(grid.group(Axis::Data).ranks, [rank % 2, rank % 2 + 2, rank % 2 + 4]);
            for axis in Axis::ALL {
                let group = grid.group(axis);
                assert_eq!((group.ranks[group.index], group.axis), (rank, axis));
                assert!(grid.groups(axis).contains(&group.ranks));
            }
        }
    }

    #[test]
    fn the_order_of_the_axes_decides_the_numbering() {
        let grid = RankGrid::new(&[(Axis::Pipeline, 2), (Axis::Data, 3)], 4).unwrap();
        assert_eq!((grid.coordinate(Axis::Pipeline), grid.coordinate(Axis::Data)), (1, 1));
        assert_eq!(grid.groups(Axis::Pipeline), [[0, 3], [1, 4], [2, 5]]);
        assert_eq!(grid.groups(Axis::Data), [[0, 1, 2], [3, 4, 5]]);
    }

    #[test]
    fn a_rank_is_found_by_its_coordinates() {
        let grid = RankGrid::new(&AXES, 3).unwrap();
        assert_eq!(grid.rank_at(&[(Axis::Data, 2), (Axis::Pipeline, 0)]), 4);
        assert_eq!(grid.rank_at(&[(Axis::Data, 0)]), 1);
        assert_eq!(grid.rank_at(&[(Axis::Pipeline, 0)]), 2);
        assert_eq!(grid.rank_at(&[]), 3);
        assert_eq!(grid.seen_from(5).unwrap(), RankGrid::new(&AXES, 5).unwrap());
        assert_eq!(RankGrid::new(&[(Axis::Data, 2)], 1).unwrap().size(Axis::Pipeline), 1);
    }

    #[test]
    fn ranks_and_axes_outside_the_grid_are_refused() {
        let refused = |axes: &[(Axis, usize)], rank| RankGrid::new(axes, rank).unwrap_err().to_string();
        assert_eq!(refused(&AXES, 6), "rank 6 is not one of 3 × 2 ranks");
        assert_eq!(refused(&[(Axis::Data, 0)], 0), "rank 0 is not one of 0 ranks");
        assert_eq!(refused(&[(Axis::Data, 2), (Axis::Data, 2)], 0), "axis data is listed twice");
        assert!(RankGrid::new(&[(Axis::Data, usize::MAX), (Axis::Pipeline, 2)], 0).is_err());
        assert!(RankGrid::new(&AXES, 0).unwrap().seen_from(6).is_err());
    }
}
