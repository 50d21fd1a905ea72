//! Copies shards of weights from host memory to the device, one after another.

use std::cell::RefCell;

use device::{Category, DType, Device, Event, Request, StreamKind};
use tensor::Tensor;

use crate::error::Result;

/// The stream of copies from the host, the same as for weights.
const STREAM: StreamKind = StreamKind::Reduce;

/// Two buffers on the device: one is filled while compute reads the other.
#[derive(Debug)]
pub(super) struct Staging {
    device: Device,
    host: Device,
    buffers: [Tensor; 2],
    state: RefCell<BufferState>,
}

#[derive(Debug)]
struct BufferState {
    /// Index of the buffer filled last.
    last: usize,
    /// The events after which each buffer may be filled again.
    emptied: [Event; 2],
}

impl Staging {
    /// Allocates buffers for shards of at most `elements` elements in the pool `host`.
    pub(super) fn new((device, host): (&Device, &Device), elements: usize, dtype: DType) -> Result<Self> {
        let request = Request::new(Category::Communication, "staged_weights");
        let buffer = || Tensor::empty(device, [elements], dtype, request);
        let buffers = [buffer()?, buffer()?];
        let now = device.record(StreamKind::Compute)?;
        let state = RefCell::new(BufferState { last: 0, emptied: [now.clone(), now] });
        Ok(Staging { device: device.clone(), host: host.clone(), buffers, state })
    }

    /// Returns a copy of `part` on the device, valid for compute work enqueued before the next call.
    pub(super) fn bring(&self, part: &Tensor) -> Result<Tensor> {
        let mut state = self.state.borrow_mut();
        let last = state.last;
        state.emptied[last] = self.device.record(StreamKind::Compute)?;
        state.last = 1 - last;
        self.device.wait(STREAM, &state.emptied[state.last])?;
        self.device.wait_for_pool(&self.host, STREAM)?;
        let copy = self.buffers[state.last].view(0, [part.elements()])?;
        copy.copy_from_pool(part, STREAM)?;
        self.device.wait(StreamKind::Compute, &self.device.record(STREAM)?)?;
        Ok(copy)
    }

    /// Runs `fill` on a buffer and copies the result to `part` in host memory, as compute work.
    ///
    /// # Errors
    /// `fill` or the device failed.
    pub(super) fn fill(&self, part: &Tensor, fill: impl FnOnce(&Tensor) -> Result<()>) -> Result<()> {
        let buffer = self.buffers[0].view(0, [part.elements()])?;
        fill(&buffer)?;
        buffer.copy_to_pool(part, StreamKind::Compute)?;
        let filled = self.device.record(StreamKind::Compute)?;
        self.host.fill_until(filled.clone());
        self.state.borrow_mut().emptied[0] = filled;
        Ok(())
    }
}
