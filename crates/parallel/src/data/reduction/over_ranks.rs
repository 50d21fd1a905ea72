//! Sums of full buckets over ranks.

use collective::DataPlane;
use device::StreamKind;
use tensor::ops;

use super::GradientReduction;
use crate::data::tree::{TreeSum, shard, tree_sums};
use crate::error::Result;

impl GradientReduction {
    /// Completes the step's sums: reduces the remaining buckets, and adds the gradients of parameters with
    /// several uses in the order of their uses.
    ///
    /// # Errors
    /// A gradient that backward did not produce; a failed collective.
    pub fn finish(&mut self, plane: &mut dyn DataPlane) -> Result<()> {
        self.check_complete()?;
        let mut left = std::mem::take(&mut self.waiting);
        left.extend(self.options.loss.then_some(self.layout.elements.len()));
        self.reduce(&left, true, plane)?;
        let reduced = self.device.record(StreamKind::Reduce)?;
        self.device.wait(StreamKind::Compute, &reduced)?;
        for (shard, view) in &self.gradients.further {
            ops::add::into(&self.gradients.first[*shard], view)?;
        }
        self.micro_batch = 0;
        Ok(())
    }

    /// Counts a produced gradient of a bucket. After the last one of a lane's last micro-batch, the bucket is
    /// folded and reduced.
    pub(super) fn complete(&mut self, bucket: usize, plane: &mut dyn DataPlane) -> Result<()> {
        self.missing[bucket] = self.missing[bucket].saturating_sub(1);
        if self.missing[bucket] > 0 || !self.last_of_lane() {
            return Ok(());
        }
        self.fold(bucket)?;
        if self.micro_batch + 1 < self.options.lanes.micro_batches() {
            return Ok(());
        }
        self.waiting.push(bucket);
        let buckets = self.layout.elements.iter().zip(&self.missing);
        let full: usize = buckets.filter(|(_, missing)| **missing == 0).map(|(elements, _)| elements).sum();
        if full < self.held {
            return Ok(());
        }
        let waiting = std::mem::take(&mut self.waiting);
        let over = self.missing.iter().all(|missing| *missing == 0);
        self.reduce(&waiting, over, plane)
    }

    /// Sums buckets over ranks on the reduce stream; `over` says that backward has ended. Nothing writes to
    /// set 0 of these buckets until [`GradientReduction::finish`], which makes compute wait for this stream.
    fn reduce(&self, buckets: &[usize], over: bool, plane: &mut dyn DataPlane) -> Result<()> {
        const STREAM: StreamKind = StreamKind::Reduce;
        if buckets.is_empty() || self.options.ranks == 1 {
            return Ok(());
        }
        let filled = self.device.record(StreamKind::Compute)?;
        self.device.wait(STREAM, &filled)?;
        let Some(scratch) = &self.scratch else {
            return buckets.iter().try_for_each(|bucket| self.reduce_by_library(*bucket, plane));
        };
        let scratch = |bucket: &usize| {
            let scratch =
                scratch.loss.as_ref().filter(|_| self.is_loss(*bucket)).unwrap_or(&scratch.gradients);
            scratch.view(0, [self.sets[0][*bucket].elements()])
        };
        let scratch = buckets.iter().map(scratch).collect::<tensor::Result<Vec<_>>>()?;
        let sum = |(bucket, scratch): (&usize, _)| {
            let everywhere = !self.scatters(*bucket);
            TreeSum { bucket: &self.sets[0][*bucket], scratch, everywhere }
        };
        let sums: Vec<_> = buckets.iter().zip(&scratch).map(sum).collect();
        tree_sums(plane, &sums, over, STREAM)
    }

    fn reduce_by_library(&self, bucket: usize, plane: &mut dyn DataPlane) -> Result<()> {
        let (scatters, bucket) = (self.scatters(bucket), &self.sets[0][bucket]);
        if !scatters {
            return Ok(plane.all_reduce(bucket.region(), bucket.dtype(), StreamKind::Reduce)?);
        }
        let own = shard(plane, bucket, plane.rank())?;
        Ok(plane.reduce_scatter(bucket.region(), own.region(), bucket.dtype(), StreamKind::Reduce)?)
    }

    /// Returns whether this is the last bucket, which holds the loss.
    fn is_loss(&self, bucket: usize) -> bool {
        bucket == self.layout.elements.len()
    }

    /// Returns whether each rank needs only its own part of the bucket.
    fn scatters(&self, bucket: usize) -> bool {
        self.shards.is_sharded() && !self.is_loss(bucket)
    }
}
