//! Sums of gradients when each rank runs contiguous lanes.

use collective::{DividedGroup, ProcessGroup, RankTree};
use device::{DType, Device, StreamKind};
use tensor::{Tensor, ops};

use super::lane_sums::LaneSums;
use super::phase::SinkPhase;
use super::rank_sums::{Bucket, RankSums};
use super::shared::SharedTensors;
use super::step_sums::{Progress, StepSums};
use crate::data::lanes::Lanes;
use crate::data::options::ReductionOptions;
use crate::error::Result;

/// Elements per rank of the loss's bucket: 512 bytes.
const ALIGNMENT: usize = 128;

/// Sums gradients in lanes within the rank, then over ranks as buckets fill in the last micro-batch.
#[derive(Debug)]
pub(super) struct RunSums {
    device: Device,
    /// Sums within the rank. On the last stage there is one more bucket, in f32, for the loss.
    lanes: LaneSums,
    /// Sums over ranks.
    ranks: RankSums,
    /// Index of the loss's bucket, if any.
    loss: Option<usize>,
    /// Number of values in the loss's bucket.
    loss_values: usize,
    /// Minimum number of elements in full buckets from which the first of them is summed over ranks.
    held: usize,
    /// Indices of full buckets not yet summed over ranks.
    waiting: Vec<usize>,
}

impl RunSums {
    /// Allocates the buffers for buckets of `elements` gradients each. `scatters`: a rank needs only its own
    /// shard of a sum.
    ///
    /// # Errors
    /// Memory is exhausted, or the lanes do not suffice for the ranks.
    pub(super) fn new(
        device: &Device,
        elements: &[usize],
        options: ReductionOptions,
        scatters: bool,
    ) -> Result<Self> {
        let loss = options.loss.then_some(ALIGNMENT * options.ranks());
        let buckets: Vec<_> = elements.iter().map(|elements| (*elements, options.dtype)).collect();
        let buckets = [buckets, loss.map(|loss| (loss, DType::F32)).into_iter().collect()].concat();
        let own = options.reduction.lanes(Lanes::new(options.assignment, options.rank)?)?;
        let lanes = LaneSums::new(device, own, &buckets)?;
        let sum = (options.reduction, own.rank_tree()?, scatters);
        let largest = elements.iter().copied().max().unwrap_or(0);
        let ranks = RankSums::new(device, sum, (largest, options.dtype), loss)?;
        let device = device.clone();
        let loss = options.loss.then_some(elements.len());
        let loss_values = options.loss_values;
        Ok(RunSums { device, lanes, ranks, loss, loss_values, held: 0, waiting: Vec::new() })
    }

    /// The buckets that hold the rank's sums after its last micro-batch.
    pub(super) fn sums(&self) -> &[Tensor] {
        self.lanes.sums()
    }

    fn sum_over_ranks(&self, buckets: &[usize], over: bool, group: &ProcessGroup) -> Result<()> {
        let is_loss = |bucket: usize| Some(bucket) == self.loss;
        let bucket = |index: &usize| Bucket { parts: self.lanes.parts(*index), is_loss: is_loss(*index) };
        self.ranks.sum(&buckets.iter().map(bucket).collect::<Vec<_>>(), over, group)
    }
}

impl StepSums for RunSums {
    fn micro_batch(&self) -> usize {
        self.lanes.micro_batch()
    }

    fn micro_batches(&self) -> usize {
        self.lanes.micro_batches()
    }

    fn advance(&mut self, count: usize) {
        self.lanes.advance(count);
    }

    fn phase(&self, micro_batch: usize) -> SinkPhase {
        SinkPhase {
            accumulates: self.lanes.accumulates(micro_batch),
            reduces: self.ranks.is_distributed() && self.lanes.is_last(micro_batch),
            is_transient: self.lanes.is_transient(micro_batch),
            senders: 0,
            folds: self.lanes.folds(micro_batch),
        }
    }

    fn buffer(&mut self, bucket: usize) -> Result<Tensor> {
        self.lanes.buffer(bucket)
    }

    fn idle_buffer(&self, bucket: usize) -> Option<Tensor> {
        self.lanes.sums().get(bucket).cloned()
    }

    /// Adds a bucket up the tree after a lane's last micro-batch, and sums it over ranks after the rank's
    /// last micro-batch.
    fn filled(&mut self, bucket: usize, progress: Progress, group: &DividedGroup) -> Result<()> {
        if !self.lanes.ends_lane() {
            return Ok(());
        }
        self.lanes.fold(bucket)?;
        if !self.lanes.is_last(self.lanes.micro_batch()) {
            return Ok(());
        }
        self.waiting.push(bucket);
        if progress.elements < self.held {
            return Ok(());
        }
        let waiting = std::mem::take(&mut self.waiting);
        self.sum_over_ranks(&waiting, progress.is_complete, &group.all)
    }

    fn add_loss(&mut self, loss: &Tensor) -> Result<()> {
        let Some(bucket) = self.loss else { return Ok(()) };
        let slot = self.lanes.buffer(bucket)?.view(0, loss.shape())?;
        match self.lanes.accumulates(self.lanes.micro_batch()) {
            true => ops::add::into(&slot, loss)?,
            false => slot.copy_from(loss)?,
        }
        if self.lanes.ends_lane() {
            self.lanes.fold(bucket)?;
        }
        Ok(())
    }

    fn finish(&mut self, group: &DividedGroup) -> Result<()> {
        let mut left = std::mem::take(&mut self.waiting);
        left.extend(self.loss);
        self.sum_over_ranks(&left, true, &group.all)?;
        if self.ranks.is_distributed() {
            let reduced = self.device.record(StreamKind::Reduce)?;
            self.device.wait(StreamKind::Compute, &reduced)?;
        }
        self.lanes.restart();
        Ok(())
    }

    fn loss(&self) -> Option<Tensor> {
        self.lanes.sums().get(self.loss?)?.view(0, [self.loss_values]).ok()
    }

    fn hold(&mut self, elements: usize) {
        self.held = elements;
    }

    fn shared(&self) -> Option<SharedTensors> {
        let further = || self.lanes.further_parts().map(<[Tensor]>::to_vec).collect();
        let sums = || self.lanes.sums().to_vec();
        self.ranks.adds_in_tree().then(|| SharedTensors {
            sums: sums(),
            weights: Vec::new(),
            further: further(),
        })
    }

    fn rank_tree(&self) -> Option<&RankTree> {
        Some(self.ranks.tree())
    }
}
