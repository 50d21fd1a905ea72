//! The interface of a step's gradient sums, for contiguous lanes or lanes in turn.

use std::fmt::Debug;

use collective::{DividedGroup, RankTree};
use tensor::Tensor;

use super::phase::SinkPhase;
use super::shared::SharedTensors;
use crate::error::Result;

/// Sums a rank's gradients and losses over a step, micro-batch by micro-batch.
pub(super) trait StepSums: Debug {
    /// The current micro-batch of the step, from 0.
    fn micro_batch(&self) -> usize;

    /// Number of micro-batches per step on this rank.
    fn micro_batches(&self) -> usize;

    /// Advances by `count` micro-batches.
    fn advance(&mut self, count: usize);

    fn phase(&self, micro_batch: usize) -> SinkPhase;

    /// Returns the buffer of a bucket that accumulates the current micro-batch.
    fn buffer(&mut self, bucket: usize) -> Result<Tensor>;

    /// Returns the memory of a bucket that is idle between steps; `None` if there is none.
    fn idle_buffer(&self, _bucket: usize) -> Option<Tensor> {
        None
    }

    /// Called when the current micro-batch has produced all gradients of a bucket.
    fn filled(&mut self, bucket: usize, progress: Progress, group: &DividedGroup) -> Result<()>;

    /// Adds the loss and figures of the current micro-batch, on the last stage.
    fn add_loss(&mut self, loss: &Tensor) -> Result<()>;

    /// Completes the sums after the last micro-batch, and returns to the first for the next step.
    fn finish(&mut self, group: &DividedGroup) -> Result<()>;

    /// The step's summed loss and figures, on the last stage.
    fn loss(&self) -> Option<Tensor>;

    /// Starts summing over ranks once full buckets have this many elements.
    fn hold(&mut self, _elements: usize) {}

    /// The tensors that ranks access in each other's memory, without weights.
    fn shared(&self) -> Option<SharedTensors> {
        None
    }

    /// Each rank's number of parts of a sum, and the order of additions.
    fn rank_tree(&self) -> Option<&RankTree> {
        None
    }
}

/// The current micro-batch's progress in producing gradients.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// Number of elements of all full buckets.
    pub(super) elements: usize,
    /// Whether all buckets are full.
    pub(super) is_complete: bool,
}
