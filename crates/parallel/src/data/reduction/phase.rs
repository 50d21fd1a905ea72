//! The phase of a micro-batch in a step.

/// Properties of a micro-batch that decide how its backward pass uses the gradient buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SinkPhase {
    /// Whether gradients are added to those of the lane.
    pub(super) accumulates: bool,
    /// Whether gradients are reduced over ranks.
    pub(super) reduces: bool,
    /// Whether gradients use transient buckets.
    pub(super) is_transient: bool,
    /// Number of ranks whose gradients are reduced into shards.
    pub(super) senders: usize,
    /// Number of sums of the lane's gradients with those of earlier lanes, plus 1, after the lane's last
    /// micro-batch; else 0. The sums take no memory.
    pub(super) folds: usize,
}

impl SinkPhase {
    /// Returns whether two phases use the same memory.
    pub(crate) fn has_memory_of(self, other: SinkPhase) -> bool {
        self == SinkPhase { folds: self.folds, ..other }
    }

    /// Returns whether two phases use memory that differs only in whether gradients are written or added.
    pub(crate) fn differs_in_accumulation(self, other: SinkPhase) -> bool {
        self.has_memory_of(SinkPhase { accumulates: !other.accumulates, ..other })
    }
}
