//! Gradient sums within a rank: buffers by lane, and the levels of the tree inside the rank.

use device::{Category, DType, Device, Request};
use tensor::{Tensor, ops};

use crate::data::lanes::Lanes;
use crate::error::Result;

/// Buffers in which a rank sums its micro-batches' gradients lane by lane, with the current micro-batch.
#[derive(Debug)]
pub(super) struct LaneSums {
    device: Device,
    lanes: Lanes,
    /// Buckets by gradient set.
    sets: Vec<Vec<Tensor>>,
    /// By bucket: the buffer of a lane that has no gradient set, until it is added to the previous set.
    transient: Vec<Option<Tensor>>,
    /// The current micro-batch of the step, from 0.
    micro_batch: usize,
}

impl LaneSums {
    /// Allocates zeroed sets of buckets, each with a number of elements and a dtype.
    pub(super) fn new(device: &Device, lanes: Lanes, buckets: &[(usize, DType)]) -> Result<Self> {
        let set = |_| {
            let bucket = |(elements, dtype): &(usize, DType)| gradient_bucket(device, *elements, *dtype);
            buckets.iter().map(bucket).collect::<Result<Vec<_>>>()
        };
        let sets = (0..lanes.sets()).map(set).collect::<Result<Vec<_>>>()?;
        let transient = vec![None; buckets.len()];
        Ok(LaneSums { device: device.clone(), lanes, sets, transient, micro_batch: 0 })
    }

    /// The buckets that hold the rank's sums, or their first part, after its last micro-batch.
    pub(super) fn sums(&self) -> &[Tensor] {
        &self.sets[0]
    }

    /// The rank's parts of a bucket's sum after its last micro-batch.
    pub(super) fn parts(&self, bucket: usize) -> Vec<Tensor> {
        self.sets.iter().take(self.lanes.parts()).map(|set| set[bucket].clone()).collect()
    }

    /// The sets that hold the second and further parts of the rank's sums.
    pub(super) fn further_parts(&self) -> impl Iterator<Item = &[Tensor]> {
        self.sets[..self.lanes.parts()].iter().skip(1).map(Vec::as_slice)
    }

    /// The current micro-batch of the step, from 0.
    pub(super) fn micro_batch(&self) -> usize {
        self.micro_batch
    }

    /// Number of micro-batches per step.
    pub(super) fn micro_batches(&self) -> usize {
        self.lanes.micro_batches()
    }

    /// Advances by `count` micro-batches.
    pub(super) fn advance(&mut self, count: usize) {
        self.micro_batch += count;
    }

    /// Returns to the first micro-batch, for the next step.
    pub(super) fn restart(&mut self) {
        self.micro_batch = 0;
    }

    /// Returns whether a micro-batch adds its gradients to its lane's sum, instead of overwriting it.
    pub(super) fn accumulates(&self, micro_batch: usize) -> bool {
        !micro_batch.is_multiple_of(self.lanes.micro_batches_per_lane())
    }

    /// Returns whether a micro-batch uses transient buffers.
    pub(super) fn is_transient(&self, micro_batch: usize) -> bool {
        self.lanes.is_transient(self.lane_of(micro_batch))
    }

    /// Returns the number of sums that a micro-batch completes: 0 within a lane; at its end, 1 plus the
    /// number of additions to earlier lanes' sums.
    pub(super) fn folds(&self, micro_batch: usize) -> usize {
        match self.accumulates(micro_batch + 1) {
            true => 0,
            false => 1 + self.lanes.folds_after(self.lane_of(micro_batch)),
        }
    }

    /// Returns whether a micro-batch is the step's last.
    pub(super) fn is_last(&self, micro_batch: usize) -> bool {
        micro_batch + 1 == self.micro_batches()
    }

    /// Returns whether the current micro-batch is the last of its lane.
    pub(super) fn ends_lane(&self) -> bool {
        !self.accumulates(self.micro_batch + 1)
    }

    /// Returns the buffer of a bucket that accumulates the current micro-batch.
    pub(super) fn buffer(&mut self, bucket: usize) -> Result<Tensor> {
        if let Some(set) = self.sets.get(self.set()) {
            return Ok(set[bucket].clone());
        }
        if let Some(buffer) = &self.transient[bucket] {
            return Ok(buffer.clone());
        }
        let like = &self.sets[0][bucket];
        let buffer = gradient_bucket(&self.device, like.elements(), like.dtype())?;
        self.transient[bucket] = Some(buffer.clone());
        Ok(buffer)
    }

    /// Adds a bucket up the levels of the tree that the current lane completes within this rank.
    pub(super) fn fold(&mut self, bucket: usize) -> Result<()> {
        let top = self.set();
        let mut upper = self.transient[bucket].take();
        for level in (0..self.lanes.folds_after(self.lane())).map(|fold| top - fold) {
            let upper = upper.take().unwrap_or_else(|| self.sets[level][bucket].clone());
            ops::add::into(&self.sets[level - 1][bucket], &upper)?;
        }
        Ok(())
    }

    fn lane(&self) -> usize {
        self.lane_of(self.micro_batch)
    }

    fn lane_of(&self, micro_batch: usize) -> usize {
        micro_batch / self.lanes.micro_batches_per_lane()
    }

    fn set(&self) -> usize {
        self.lanes.set_of(self.lane())
    }
}

fn gradient_bucket(device: &Device, elements: usize, dtype: DType) -> Result<Tensor> {
    let request = Request::new(Category::Gradient, "gradient_bucket");
    Ok(Tensor::zeros(device, [elements], dtype, request)?)
}
