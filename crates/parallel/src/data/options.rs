//! Options of the reduction of gradients.

use device::DType;

use super::assignment::Assignment;
use super::buckets::BucketEnd;
use super::lanes::Lanes;
use super::zero::shards_gradients;
use crate::error::Result;

system::names! {
    /// How gradients are summed over ranks.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Reduction {
        /// Plimsoll sums in the order of a fixed tree: the same bits on every grid.
        Tree = "tree",
        /// The transport sums in its own order: the same bits only on the same grid.
        Library = "nccl",
    }
}

impl Reduction {
    /// Returns the lanes of a rank as this reduction adds them: a library sums one part of each rank, so that
    /// they have a tree of their own.
    pub fn lanes(self, lanes: Lanes) -> Result<Lanes> {
        match self {
            Reduction::Tree => Ok(lanes),
            Reduction::Library => lanes.apart(),
        }
    }
}

/// Options of a [`GradientReduction`](super::GradientReduction).
#[derive(Clone, Copy, Debug)]
pub struct ReductionOptions {
    /// The lanes of all data-parallel ranks: in turn within each group that shares state from ZeRO stage 2
    /// on, otherwise contiguous runs.
    pub assignment: Assignment,
    /// This rank's coordinate along [`Axis::Data`](collective::Axis::Data).
    pub rank: usize,
    /// Type of gradients, to which each lane's sum and each node of the tree is rounded: f32, or the dtype of
    /// the weights.
    pub dtype: DType,
    /// The end of a bucket of gradients.
    pub bucket_end: BucketEnd,
    /// How gradients are summed over ranks.
    pub reduction: Reduction,
    /// ZeRO stage: from 1 on, each rank gets only the sums of the parts that it owns, and from 2 on it has
    /// buffers for those only.
    pub zero_stage: u32,
    /// Whether this rank has the last stage, where losses are summed.
    pub loss: bool,
    /// Values of a micro-batch's loss: the loss, and figures that are summed beside it.
    pub loss_values: usize,
}

impl ReductionOptions {
    /// Number of data-parallel ranks.
    pub fn ranks(&self) -> usize {
        self.assignment.replicas()
    }

    /// Returns whether gradients are summed in shards.
    pub fn sums_in_shards(&self) -> bool {
        shards_gradients(self.zero_stage) && self.assignment.group() > 1
    }

    /// Returns the number of ranks that share state, if it is sharded, and this rank's index among them.
    pub fn owners(&self) -> (usize, usize) {
        match shards_gradients(self.zero_stage) {
            true => (self.assignment.group(), self.rank % self.assignment.group()),
            false => (self.ranks(), self.rank),
        }
    }
}
