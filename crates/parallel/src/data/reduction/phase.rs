//! How a micro-batch's backward pass uses the gradient buffers.

/// Properties of a micro-batch that determine its backward pass's use of gradient buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SinkPhase {
    /// Whether gradients are added to the lane's sum.
    pub(super) accumulates: bool,
    /// Whether gradients are reduced over ranks.
    pub(super) reduces: bool,
    /// Whether gradients use transient buckets.
    pub(super) is_transient: bool,
    /// Number of ranks whose gradients are reduced into shards.
    pub(super) senders: usize,
    /// After a lane's last micro-batch, 1 plus the number of additions to earlier lanes' sums; otherwise 0.
    /// The additions take no memory.
    pub(super) folds: usize,
}

impl SinkPhase {
    /// Returns whether both phases use the same memory.
    pub(crate) fn has_memory_of(self, other: SinkPhase) -> bool {
        self == SinkPhase { folds: self.folds, ..other }
    }

    /// Returns whether the phases differ only in whether gradients are overwritten or added.
    pub(crate) fn differs_in_accumulation(self, other: SinkPhase) -> bool {
        self.has_memory_of(SinkPhase { accumulates: !other.accumulates, ..other })
    }
}
