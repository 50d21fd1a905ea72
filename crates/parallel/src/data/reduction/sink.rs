//! The sink to which backward passes the gradients of one micro-batch.

use autograd::{AutogradError, GradientSink, Target, UseId, Weight};
use collective::DividedGroup;

use super::GradientReduction;
use crate::data::buckets::BucketSlot;

/// A sink that gives one micro-batch's gradients their slots in the buckets, and reduces buckets as they
/// fill.
pub struct MicroBatchSink<'a> {
    reduction: &'a mut GradientReduction,
    group: DividedGroup,
}

impl std::fmt::Debug for MicroBatchSink<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MicroBatchSink").field("micro_batch", &self.reduction.sums.micro_batch()).finish()
    }
}

impl GradientReduction {
    /// Creates the sink for the next micro-batch's backward pass; `group` is the group of
    /// [`Axis::Data`](collective::Axis::Data).
    pub fn sink(&mut self, group: &DividedGroup) -> MicroBatchSink<'_> {
        self.missing.clone_from(&self.layout.members);
        MicroBatchSink { reduction: self, group: group.clone() }
    }
}

impl MicroBatchSink<'_> {
    fn slot(&self, use_id: UseId) -> autograd::Result<BucketSlot> {
        let unknown =
            || AutogradError::NoTarget { use_id: use_id.0, reason: "it was not registered".to_owned() };
        self.reduction.layout.slot(use_id).ok_or_else(unknown)
    }
}

impl GradientSink for MicroBatchSink<'_> {
    fn target(&mut self, use_id: UseId, weight: &Weight) -> autograd::Result<Target> {
        let BucketSlot { bucket, offset } = self.slot(use_id)?;
        let sums = &mut self.reduction.sums;
        let accumulate = sums.phase(sums.micro_batch()).accumulates;
        let tensor = sums.buffer(bucket)?.view(offset, weight.shape())?;
        Ok(Target { tensor, accumulate })
    }

    fn ready(&mut self, use_id: UseId) -> autograd::Result<()> {
        let slot = self.slot(use_id)?;
        Ok(self.reduction.complete(slot.bucket, &self.group)?)
    }
}
