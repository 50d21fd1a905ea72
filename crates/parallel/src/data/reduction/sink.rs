//! The sink of a backward pass, which receives gradients from rules into buckets.

use autograd::{AutogradError, GradientSink, Target, UseId, Weight};
use collective::DividedGroup;

use super::GradientReduction;
use crate::data::buckets::BucketSlot;

/// Observes the gradients of a backward pass.
pub trait GradientObserver {
    /// Called before a rule computes a gradient into `target`.
    fn begins(&mut self, use_id: UseId, target: &Target);

    /// Called when a gradient is complete, before its bucket is reduced.
    ///
    /// # Errors
    /// Errors of the observer end the step.
    fn is_complete(&mut self, use_id: UseId) -> autograd::Result<()>;

    /// Called after a gradient was added to its bucket. If it completed the bucket, the bucket was reduced as
    /// well.
    ///
    /// # Errors
    /// Errors of the observer end the step.
    fn is_added(&mut self, use_id: UseId) -> autograd::Result<()>;
}

/// The sink of one micro-batch's gradients.
pub struct MicroBatchSink<'a> {
    destination: Destination<'a>,
    observer: Option<Box<dyn GradientObserver + 'a>>,
}

/// Memory for a micro-batch's gradients.
enum Destination<'a> {
    /// The buckets of a step, which are reduced over the ranks of a group as they fill.
    Buckets(&'a mut GradientReduction, DividedGroup),
    /// Idle memory of the step's sums: the gradients are discarded.
    Scratch(&'a GradientReduction),
}

impl std::fmt::Debug for MicroBatchSink<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let micro_batch = match &self.destination {
            Destination::Buckets(reduction, _) => Some(reduction.sums.micro_batch()),
            Destination::Scratch(_) => None,
        };
        f.debug_struct("MicroBatchSink").field("micro_batch", &micro_batch).finish()
    }
}

impl GradientReduction {
    /// Creates the sink for the next micro-batch's backward pass. `group` is the group of
    /// [`Axis::Data`](collective::Axis::Data).
    pub fn sink(&mut self, group: &DividedGroup) -> MicroBatchSink<'_> {
        self.missing.clone_from(&self.layout.members);
        MicroBatchSink { destination: Destination::Buckets(self, group.clone()), observer: None }
    }

    /// Creates a sink that discards the gradients.
    pub fn scratch_sink(&self) -> MicroBatchSink<'_> {
        MicroBatchSink { destination: Destination::Scratch(self), observer: None }
    }

    fn slot(&self, use_id: UseId) -> autograd::Result<BucketSlot> {
        let unknown =
            || AutogradError::NoTarget { use_id: use_id.0, reason: "it was not registered".to_owned() };
        self.layout.slot(use_id).ok_or_else(unknown)
    }

    /// Returns the memory of a use's gradient in its bucket.
    fn bucket_target(&mut self, use_id: UseId, weight: &Weight) -> autograd::Result<Target> {
        let BucketSlot { bucket, offset } = self.slot(use_id)?;
        let accumulate = self.sums.phase(self.sums.micro_batch()).accumulates;
        let tensor = self.sums.buffer(bucket)?.view(offset, weight.shape())?;
        Ok(Target { tensor, accumulate })
    }
}

impl<'a> MicroBatchSink<'a> {
    /// Sets an observer of the gradients, if any.
    #[must_use]
    pub fn observed(self, observer: Option<Box<dyn GradientObserver + 'a>>) -> Self {
        MicroBatchSink { observer, ..self }
    }
}

impl GradientSink for MicroBatchSink<'_> {
    fn target(&mut self, use_id: UseId, weight: &Weight) -> autograd::Result<Target> {
        let target = match &mut self.destination {
            Destination::Buckets(reduction, _) => reduction.bucket_target(use_id, weight)?,
            Destination::Scratch(reduction) => {
                Target { tensor: reduction.scratch(use_id, weight)?, accumulate: false }
            }
        };
        if let Some(observer) = &mut self.observer {
            observer.begins(use_id, &target);
        }
        Ok(target)
    }

    fn ready(&mut self, use_id: UseId) -> autograd::Result<()> {
        if let Some(observer) = &mut self.observer {
            observer.is_complete(use_id)?;
        }
        if let Destination::Buckets(reduction, group) = &mut self.destination {
            let bucket = reduction.slot(use_id)?.bucket;
            reduction.complete(bucket, group)?;
        }
        self.observer.as_mut().map_or(Ok(()), |observer| observer.is_added(use_id))
    }
}
