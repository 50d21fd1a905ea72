//! Segments of pinned host memory, with which a GPU copies without blocking the host.

use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::{CudaContext, sys};
use memory::{Capacity, EventId, Placement, RawError, RawMemory, Stream};

use crate::cuda::{CudaError, Pinned};

/// Pinned host memory as an allocator's source of segments.
#[derive(Debug)]
pub(crate) struct PinnedMemory {
    context: Arc<CudaContext>,
    total: u64,
    used: u64,
    next_order: u64,
    segments: HashMap<u64, Pinned>,
}

impl PinnedMemory {
    pub(crate) fn new(context: &Arc<CudaContext>, total: u64) -> Self {
        let context = Arc::clone(context);
        PinnedMemory { context, total, used: 0, next_order: 0, segments: HashMap::new() }
    }
}

impl RawMemory for PinnedMemory {
    fn allocate(&mut self, bytes: u64, _stream: Stream) -> Result<Placement, RawError> {
        let length = usize::try_from(bytes).map_err(|_| RawError::OutOfMemory)?;
        if bytes > self.total.saturating_sub(self.used) {
            return Err(RawError::OutOfMemory);
        }
        let mut segment = Pinned::new(&self.context, length).map_err(refused)?;
        let address = segment.slice_mut().as_mut_ptr().expose_provenance() as u64;
        let order = self.next_order;
        self.next_order += bytes;
        self.used += bytes;
        self.segments.insert(address, segment);
        Ok(Placement { address, order })
    }

    fn free(&mut self, address: u64, bytes: u64) -> Result<(), RawError> {
        let text = || format!("no pinned segment starts at {address:#x}");
        self.segments.remove(&address).ok_or_else(|| RawError::Driver { code: 0, text: text() })?;
        self.used -= bytes;
        Ok(())
    }

    fn reserve(&mut self, _bytes: u64, _stream: Stream) -> Result<Placement, RawError> {
        Err(without_pages())
    }

    fn unreserve(&mut self, _address: u64, _bytes: u64) -> Result<(), RawError> {
        Err(without_pages())
    }

    fn map(&mut self, _address: u64, _bytes: u64, _page: u64, _stream: Stream) -> Result<(), RawError> {
        Err(without_pages())
    }

    fn unmap(&mut self, _address: u64, _bytes: u64, _page: u64) -> Result<(), RawError> {
        Err(without_pages())
    }

    fn capacity(&self) -> Capacity {
        Capacity { free: self.total.saturating_sub(self.used), total: self.total }
    }

    fn record_event(&mut self, _stream: Stream) -> Result<EventId, RawError> {
        Ok(EventId(0))
    }

    fn event_done(&mut self, _event: EventId) -> Result<bool, RawError> {
        Ok(true)
    }

    fn event_wait(&mut self, _event: EventId) -> Result<(), RawError> {
        Ok(())
    }
}

/// Returns the error for expandable segments, which a host pool's settings never request.
fn without_pages() -> RawError {
    RawError::Driver { code: 0, text: "pinned memory has no expandable segments".to_owned() }
}

fn refused(error: CudaError) -> RawError {
    let is_out_of_memory =
        error.call == "mmap" || error.code == sys::cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY as i64;
    match is_out_of_memory {
        true => RawError::OutOfMemory,
        false => RawError::Driver { code: error.code, text: error.to_string() },
    }
}
