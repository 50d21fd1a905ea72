//! The interface of a step's sums, over runs of lanes or over lanes in turn.

use std::fmt::Debug;

use collective::{DividedGroup, RankTree};
use tensor::Tensor;

use super::phase::SinkPhase;
use super::shared::SharedTensors;
use crate::error::Result;

/// The buffers in which a rank adds up a step's gradients and losses, and the micro-batch that is current.
pub(super) trait StepSums: Debug {
    /// The current micro-batch of the step, from 0.
    fn micro_batch(&self) -> usize;

    /// Number of micro-batches of a step on this rank.
    fn micro_batches(&self) -> usize;

    /// Continues `count` micro-batches later.
    fn advance(&mut self, count: usize);

    fn phase(&self, micro_batch: usize) -> SinkPhase;

    /// The buffer of a bucket in which the current micro-batch adds up.
    fn buffer(&mut self, bucket: usize) -> Result<Tensor>;

    /// The memory of a bucket that is idle between steps; `None` if gradients are not kept there.
    fn idle_buffer(&self, _bucket: usize) -> Option<Tensor> {
        None
    }

    /// Called when the current micro-batch has produced all gradients of a bucket.
    fn filled(&mut self, bucket: usize, progress: Progress, group: &DividedGroup) -> Result<()>;

    /// Adds the loss of the current micro-batch with its figures, on the last stage.
    fn add_loss(&mut self, loss: &Tensor) -> Result<()>;

    /// Completes the sums after the last micro-batch, and continues with the first of the next step.
    fn finish(&mut self, group: &DividedGroup) -> Result<()>;

    /// The summed loss with its figures, on the last stage.
    fn loss(&self) -> Option<Tensor>;

    /// Starts to sum over ranks when this many elements of full buckets exist.
    fn hold(&mut self, _elements: usize) {}

    /// The tensors that ranks access in each other's memory, without weights.
    fn shared(&self) -> Option<SharedTensors> {
        None
    }

    /// The parts of all ranks of a sum, and the order in which they are added.
    fn rank_tree(&self) -> Option<&RankTree> {
        None
    }
}

/// The gradients that the current micro-batch has produced so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// Elements of all full buckets.
    pub(super) elements: usize,
    /// Whether all buckets are full.
    pub(super) is_complete: bool,
}
