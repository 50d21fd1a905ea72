//! Weights that come and go: a block's weights in one flat buffer, of which each rank keeps an equal shard.

use autograd::WeightHandle;
use collective::{DataPlane, SharedPlane};
use device::{Category, DType, Device, Request, StreamKind};
use tensor::Tensor;

use crate::error::{ParallelError, Result};

/// Elements of which the first of each weight is a multiple, so that kernels read whole vectors.
const ALIGNMENT: usize = 128;

/// The weights of a block, which one call gathers from the ranks of a plane before they are used, and which
/// are released afterwards. Between, each rank holds its shard alone.
#[derive(Debug)]
pub struct WeightBucket {
    device: Device,
    plane: SharedPlane,
    weights: Vec<WeightHandle>,
    dtype: DType,
    /// First element of each weight.
    offsets: Vec<usize>,
    /// Elements of the buffer, a multiple of the ranks.
    elements: usize,
    shard: Tensor,
}

impl WeightBucket {
    /// Keeps this rank's shard of the values of `weights`, which all ranks of `plane` have alike, and
    /// releases the values.
    ///
    /// # Errors
    /// No weights, weights of several types, released weights; out of memory.
    pub fn new(plane: &SharedPlane, weights: Vec<WeightHandle>) -> Result<Self> {
        let refused = |reason: &str| ParallelError::Grid(format!("a bucket of weights {reason}"));
        let first = weights.first().ok_or_else(|| refused("needs a weight"))?;
        let (device, dtype) = (first.device().clone(), first.dtype());
        if weights.iter().any(|weight| weight.dtype() != dtype) {
            return Err(refused("has one type"));
        }
        let (mut offsets, mut end) = (Vec::new(), 0);
        for weight in &weights {
            offsets.push(end);
            end = (end + weight.elements()).next_multiple_of(ALIGNMENT);
        }
        let elements = end.next_multiple_of(plane.world_size() * ALIGNMENT);
        let request = Request::new(Category::Parameter, "weight_shard");
        let shard = Tensor::zeros(&device, [elements / plane.world_size()], dtype, request)?;
        let bucket = WeightBucket { device, plane: plane.clone(), weights, dtype, offsets, elements, shard };
        bucket.keep_shard()?;
        bucket.release();
        Ok(bucket)
    }

    /// Copies this rank's elements of the weights to its shard.
    fn keep_shard(&self) -> Result<()> {
        for (number, first, part) in self.owned()? {
            part.copy_from(&self.weights[number].tensor()?.view(first, [part.elements()])?)?;
        }
        Ok(())
    }

    /// Gathers the values in one call on the reduce stream. The first operator that uses a weight waits for
    /// them.
    ///
    /// # Errors
    /// Out of memory; a failed collective.
    pub fn gather(&mut self) -> Result<()> {
        const STREAM: StreamKind = StreamKind::Reduce;
        let request = Request::new(Category::Parameter, "gathered_weights").on(STREAM);
        let flat = Tensor::empty(&self.device, [self.elements], self.dtype, request)?;
        // The memory may be that of weights which compute still used when they were released.
        self.device.wait(STREAM, &self.device.record(StreamKind::Compute)?)?;
        self.plane.all_gather(self.shard.region(), flat.region(), STREAM)?;
        let arrival = self.device.arrival(STREAM)?;
        for (weight, offset) in self.weights.iter().zip(&self.offsets) {
            let values = flat.view(*offset, weight.shape())?;
            values.arrives(&arrival);
            weight.fill(values)?;
        }
        Ok(())
    }

    /// Releases the values; their memory is free when no operator uses them any more.
    pub fn release(&self) {
        self.weights.iter().for_each(WeightHandle::release);
    }

    /// This rank's elements of the flat buffer.
    pub fn shard(&self) -> &Tensor {
        &self.shard
    }

    /// The parts of the shard: of each weight with elements in it the weight's number, its first element
    /// there, and the view of the shard.
    ///
    /// # Errors
    /// None for a shard of this bucket.
    pub fn owned(&self) -> Result<Vec<(usize, usize, Tensor)>> {
        let part = self.shard.elements();
        let (start, end) = (self.plane.rank() * part, (self.plane.rank() + 1) * part);
        let mut owned = Vec::new();
        for (number, (weight, offset)) in self.weights.iter().zip(&self.offsets).enumerate() {
            let (from, to) = (start.max(*offset), end.min(offset + weight.elements()));
            if from < to {
                owned.push((number, from - offset, self.shard.view(from - start, [to - from])?));
            }
        }
        Ok(owned)
    }
}
