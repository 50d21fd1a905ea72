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
        /// The transport's library sums in its own order: the same bits only on the same grid.
        Library = "nccl",
    }
}

impl Reduction {
    /// Returns the lanes of a rank for this kind of reduction. A library sums one part per rank, so each
    /// rank's lanes form a tree of their own.
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
    /// The lanes of all data-parallel ranks. From ZeRO stage 2 on they are dealt in turn within each group
    /// that shares state; otherwise they are contiguous runs.
    pub assignment: Assignment,
    /// This rank's coordinate along [`Axis::Data`](collective::Axis::Data).
    pub rank: usize,
    /// Dtype of gradients, to which each lane's sum and each node of the tree is rounded: f32, or the dtype
    /// of the weights.
    pub dtype: DType,
    /// Rule for closing a bucket of gradients.
    pub bucket_end: BucketEnd,
    /// How gradients are summed over ranks.
    pub reduction: Reduction,
    /// ZeRO stage: from 1 on, each rank gets only the sums of its own shards; from 2 on, it has buffers only
    /// for these.
    pub zero_stage: u32,
    /// Whether this rank has the last stage, where losses are summed.
    pub loss: bool,
    /// Number of values per micro-batch: the loss, and figures summed along with it.
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

    /// Returns the number of ranks that share the state, and this rank's index among them.
    pub fn owners(&self) -> (usize, usize) {
        match shards_gradients(self.zero_stage) {
            true => (self.assignment.group(), self.rank % self.assignment.group()),
            false => (self.ranks(), self.rank),
        }
    }
}
