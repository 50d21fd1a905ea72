//! Buffers that hold a lane's gradients until they are sent to the owners of their shards.

use device::{Category, DType, Device, Event, Request, StreamKind};
use tensor::Tensor;

use crate::data::buffer_assignment::BufferAssignment;
use crate::error::Result;

/// Number of buckets in use at once: one is filled while the previous one is sent.
const WINDOW: usize = 2;

/// Buffers for whole buckets. Lanes of several micro-batches need one per bucket to accumulate; otherwise
/// buckets take turns in a few.
#[derive(Debug)]
pub(super) struct BucketBuffers {
    device: Device,
    dtype: DType,
    /// Number of elements of each bucket.
    elements: Vec<usize>,
    /// Index of each bucket's buffer.
    buffer_of: Vec<usize>,
    buffers: Vec<Buffer>,
}

#[derive(Debug)]
struct Buffer {
    memory: Tensor,
    /// The bucket being filled.
    bucket: Option<usize>,
    /// Event after the work that reads the last bucket; the next bucket waits for it.
    read: Option<Event>,
}

impl BucketBuffers {
    /// Allocates buffers for buckets of `elements` gradients each. `is_whole`: one buffer per bucket.
    pub(super) fn new(device: &Device, elements: &[usize], dtype: DType, is_whole: bool) -> Result<Self> {
        let order: Vec<_> = (0..elements.len()).collect();
        let assignment = match is_whole {
            true => BufferAssignment { buffer_of: order, elements: elements.to_vec() },
            false => BufferAssignment::new(elements, &order, WINDOW),
        };
        let buffers = assignment.elements.iter().map(|elements| Buffer::new(device, *elements, dtype));
        let buffers = buffers.collect::<Result<_>>()?;
        Ok(BucketBuffers {
            device: device.clone(),
            dtype,
            elements: elements.to_vec(),
            buffer_of: assignment.buffer_of,
            buffers,
        })
    }

    /// Returns the buffer that receives a bucket's gradients. Compute waits until the buffer's previous
    /// bucket has been read.
    pub(super) fn take(&mut self, bucket: usize) -> Result<Tensor> {
        if self.buffers[self.buffer_of[bucket]].bucket.is_some_and(|other| other != bucket) {
            // Backward fills more buckets at once than expected: this one has its own buffer from now on.
            self.buffer_of[bucket] = self.buffers.len();
            self.buffers.push(Buffer::new(&self.device, self.elements[bucket], self.dtype)?);
        }
        let buffer = &mut self.buffers[self.buffer_of[bucket]];
        buffer.bucket = Some(bucket);
        if let Some(read) = buffer.read.take() {
            self.device.wait(StreamKind::Compute, &read)?;
        }
        Ok(buffer.memory.view(0, [self.elements[bucket]])?)
    }

    /// Records that the work up to `read` is the last to read a bucket.
    pub(super) fn sent(&mut self, bucket: usize, read: Event) {
        let buffer = &mut self.buffers[self.buffer_of[bucket]];
        (buffer.bucket, buffer.read) = (None, Some(read));
    }
}

impl Buffer {
    fn new(device: &Device, elements: usize, dtype: DType) -> Result<Self> {
        let request = Request::new(Category::Gradient, "gradient_bucket");
        Ok(Buffer { memory: Tensor::zeros(device, [elements], dtype, request)?, bucket: None, read: None })
    }
}
