//! Segments without memory: addresses only.

use crate::description::Description;
use memory::{Capacity, EventId, Placement, RawError, RawMemory, Stream};

/// First address: CUDA's addresses start here, so that snapshots of Meta look like a device's.
const FIRST_ADDRESS: u64 = 0x7f00_0000_0000;
/// Alignment of ordinary segments and virtual ranges.
const ALIGNMENT: u64 = 2 << 20;

/// A driver that hands out addresses without memory, up to a capacity.
#[derive(Debug)]
pub(crate) struct MetaMemory {
    total: u64,
    used: u64,
    granularity: u64,
    next_address: u64,
    next_order: u64,
}

impl MetaMemory {
    pub(crate) fn new(description: &Description) -> Self {
        MetaMemory {
            total: description.total_bytes,
            used: description.taken_bytes.min(description.total_bytes),
            granularity: description.granularity.max(1),
            next_address: FIRST_ADDRESS,
            next_order: 0,
        }
    }

    fn index(&mut self, bytes: u64) -> Placement {
        let placement = Placement { address: self.next_address, order: self.next_order };
        let span = bytes.next_multiple_of(ALIGNMENT);
        self.next_address += span;
        self.next_order += span;
        placement
    }

    /// Returns the bytes that a real driver would take for a request.
    fn rounded(&self, bytes: u64) -> u64 {
        bytes.checked_next_multiple_of(self.granularity).unwrap_or(u64::MAX)
    }

    fn take(&mut self, bytes: u64) -> Result<(), RawError> {
        let bytes = self.rounded(bytes);
        if bytes > self.total.saturating_sub(self.used) {
            return Err(RawError::OutOfMemory);
        }
        self.used += bytes;
        Ok(())
    }
}

impl RawMemory for MetaMemory {
    fn allocate(&mut self, bytes: u64, _stream: Stream) -> Result<Placement, RawError> {
        self.take(bytes)?;
        Ok(self.index(bytes))
    }

    fn free(&mut self, _address: u64, bytes: u64) -> Result<(), RawError> {
        self.used -= self.rounded(bytes);
        Ok(())
    }

    fn reserve(&mut self, bytes: u64, _stream: Stream) -> Result<Placement, RawError> {
        Ok(self.index(bytes))
    }

    fn unreserve(&mut self, _address: u64, _bytes: u64) -> Result<(), RawError> {
        Ok(())
    }

    fn map(&mut self, _address: u64, bytes: u64, _page: u64, _stream: Stream) -> Result<(), RawError> {
        self.take(bytes)
    }

    fn unmap(&mut self, _address: u64, bytes: u64, _page: u64) -> Result<(), RawError> {
        self.used -= self.rounded(bytes);
        Ok(())
    }

    fn capacity(&self) -> Capacity {
        Capacity { free: self.total - self.used, total: self.total }
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
