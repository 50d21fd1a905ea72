//! The buffers in which a lane's gradients lie until the owners of their shards have them.

use device::{Category, DType, Device, Event, Request, StreamKind};
use tensor::Tensor;

use crate::data::slots::Slots;
use crate::error::Result;

/// Buckets that are filled or on their way at once: one is filled while the one before is sent.
const WINDOW: usize = 2;

/// Whole buckets: one buffer each for lanes of several micro-batches, which add up here, or else a few that
/// buckets use in turn.
#[derive(Debug)]
pub(super) struct BucketBuffers {
    device: Device,
    dtype: DType,
    /// Elements of each bucket.
    elements: Vec<usize>,
    /// The buffer of each bucket.
    of: Vec<usize>,
    buffers: Vec<Buffer>,
}

#[derive(Debug)]
struct Buffer {
    memory: Tensor,
    /// The bucket that is being filled.
    bucket: Option<usize>,
    /// End of the work that reads the last bucket, for which the next one waits.
    read: Option<Event>,
}

impl BucketBuffers {
    /// Allocates the buffers of buckets of `elements` gradients each; `is_whole`: one for each bucket.
    pub(super) fn new(device: &Device, elements: &[usize], dtype: DType, is_whole: bool) -> Result<Self> {
        let order: Vec<_> = (0..elements.len()).collect();
        let slots = match is_whole {
            true => Slots { of: order, elements: elements.to_vec() },
            false => Slots::new(elements, &order, WINDOW),
        };
        let buffers = slots.elements.iter().map(|elements| Buffer::new(device, *elements, dtype));
        let buffers = buffers.collect::<Result<_>>()?;
        Ok(BucketBuffers {
            device: device.clone(),
            dtype,
            elements: elements.to_vec(),
            of: slots.of,
            buffers,
        })
    }

    /// Returns the buffer in which a bucket's gradients are written or add up. Compute waits until the bucket
    /// before it in this buffer has been read.
    pub(super) fn take(&mut self, bucket: usize) -> Result<Tensor> {
        if self.buffers[self.of[bucket]].bucket.is_some_and(|other| other != bucket) {
            // Backward fills more buckets at once than expected: from now on this one has its own buffer.
            self.of[bucket] = self.buffers.len();
            self.buffers.push(Buffer::new(&self.device, self.elements[bucket], self.dtype)?);
        }
        let buffer = &mut self.buffers[self.of[bucket]];
        buffer.bucket = Some(bucket);
        if let Some(read) = buffer.read.take() {
            self.device.wait(StreamKind::Compute, &read)?;
        }
        Ok(buffer.memory.view(0, [self.elements[bucket]])?)
    }

    /// Records that the work up to `read` reads a bucket for the last time.
    pub(super) fn sent(&mut self, bucket: usize, read: Event) {
        let buffer = &mut self.buffers[self.of[bucket]];
        (buffer.bucket, buffer.read) = (None, Some(read));
    }
}

impl Buffer {
    fn new(device: &Device, elements: usize, dtype: DType) -> Result<Self> {
        let request = Request::new(Category::Gradient, "gradient_bucket");
        Ok(Buffer { memory: Tensor::zeros(device, [elements], dtype, request)?, bucket: None, read: None })
    }
}
