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
}

impl SinkPhase {
    /// Returns whether two phases differ only in whether gradients are written or added.
    pub(crate) fn differs_in_accumulation(self, other: SinkPhase) -> bool {
        self == SinkPhase { accumulates: !other.accumulates, ..other }
    }
}
