//! The ranks that hold the same pipeline stages, found by the shard of parameters or state that each holds.

use collective::{Axis, RankGrid};

/// The ranks of a grid with this rank's pipeline coordinate.
///
/// A rank is identified by its tensor coordinate, its shard of the state, and its copy: ranks of one copy
/// together hold everything.
#[derive(Clone, Debug)]
pub struct StageRanks {
    /// World ranks of each tensor coordinate, copy by copy, in the order of their shards.
    by_tensor: Vec<Vec<usize>>,
    /// Number of shards of the state, which is the number of ranks of a copy at one tensor coordinate.
    shards: usize,
    /// Index of this rank among all ranks of the run.
    own: usize,
}

/// Position of a rank among the ranks of its stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) tensor: usize,
    pub(super) copy: usize,
    pub(super) shard: usize,
}

impl StageRanks {
    /// Lists the ranks of `grid` that hold this rank's stages.
    #[must_use]
    pub fn new(grid: &RankGrid, replica_axes: &[Axis], shards: usize) -> Self {
        let has_copies = !replica_axes.contains(&Axis::Context);
        let contexts = if has_copies { grid.size(Axis::Context) } else { 1 };
        let at = |tensor: usize| {
            let of_context = |context: usize| {
                let mut coordinates = vec![(Axis::Tensor, tensor)];
                coordinates.extend(has_copies.then_some((Axis::Context, context)));
                let seen = grid.seen_from(grid.rank_at(&coordinates));
                seen.map(|grid| grid.group_over(replica_axes).ranks).unwrap_or_default()
            };
            (0..contexts).flat_map(of_context).collect()
        };
        let by_tensor = (0..grid.size(Axis::Tensor)).map(at).collect();
        StageRanks { by_tensor, shards: shards.max(1), own: grid.rank() }
    }

    /// Index of this rank among all ranks of the run.
    pub(super) fn own(&self) -> usize {
        self.own
    }

    /// Number of shards of the state.
    pub(super) fn shards(&self) -> usize {
        self.shards
    }

    /// Number of tensor coordinates.
    pub(super) fn tensor_ranks(&self) -> usize {
        self.by_tensor.len()
    }

    /// Number of copies of the stages' state.
    pub(super) fn copies(&self) -> usize {
        self.by_tensor[0].len() / self.shards
    }

    /// Returns the world rank at a position.
    pub(super) fn rank_at(&self, Position { tensor, copy, shard }: Position) -> usize {
        self.by_tensor[tensor][copy * self.shards + shard]
    }

    /// Returns the positions of all ranks. Ranks that hold the same parts are consecutive.
    pub(super) fn positions(&self) -> impl Iterator<Item = Position> + '_ {
        let all = (0..self.tensor_ranks()).flat_map(move |tensor| {
            (0..self.shards)
                .flat_map(move |shard| (0..self.copies()).map(move |copy| Position { tensor, copy, shard }))
        });
        all.collect::<Vec<_>>().into_iter()
    }
}
