//! Segments without memory: addresses only, for Meta.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::description::Description;
use memory::{Capacity, EventId, Placement, RawError, RawMemory, Stream};

/// First address. CUDA's addresses begin here too, so that snapshots of Meta look like a GPU's.
const FIRST_ADDRESS: u64 = 0x7f00_0000_0000;
/// Alignment of ordinary segments and virtual ranges.
const ALIGNMENT: u64 = 2 << 20;

/// Returns the bytes of GPU memory for the page tables of `pinned` bytes: 8 per 4 KiB, as measured on an
/// H200.
#[must_use]
pub fn page_table_bytes(pinned: u64) -> u64 {
    pinned / 512
}

/// Bytes of a device that page tables take, shared by the memories of the device and of its pools.
pub(crate) type PageTables = Arc<AtomicU64>;

/// Source of segments that hands out addresses without memory, up to a capacity.
#[derive(Debug)]
pub(crate) struct MetaMemory {
    total: u64,
    used: u64,
    granularity: u64,
    next_address: u64,
    next_order: u64,
    page_tables: PageTables,
    role: Role,
}

/// How a memory is related to the device's page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// The device's memory, which contains the page tables.
    Has,
    /// Pinned memory, which enlarges the page tables.
    Needs,
    /// Other host memory, which does not affect the page tables.
    None,
}

impl MetaMemory {
    /// Creates a device's memory, reduced by the bytes in `page_tables`.
    pub(crate) fn new(description: &Description, page_tables: &PageTables) -> Self {
        Self::with(description, page_tables, Role::Has)
    }

    /// Creates a pool's host memory. With `is_pinned`, it enlarges the device's `page_tables`.
    pub(crate) fn pool(description: &Description, page_tables: &PageTables, is_pinned: bool) -> Self {
        Self::with(description, page_tables, if is_pinned { Role::Needs } else { Role::None })
    }

    fn with(description: &Description, page_tables: &PageTables, role: Role) -> Self {
        MetaMemory {
            page_tables: Arc::clone(page_tables),
            role,
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

    /// Returns the bytes that a real driver would take for a request of `bytes`.
    fn rounded(&self, bytes: u64) -> u64 {
        bytes.checked_next_multiple_of(self.granularity).unwrap_or(u64::MAX)
    }

    fn take(&mut self, bytes: u64) -> Result<(), RawError> {
        let bytes = self.rounded(bytes);
        if bytes > self.available() {
            return Err(RawError::OutOfMemory);
        }
        self.used += bytes;
        Ok(())
    }

    fn available(&self) -> u64 {
        let tables = if self.role == Role::Has { self.page_tables.load(Ordering::Relaxed) } else { 0 };
        self.total.saturating_sub(self.used).saturating_sub(tables)
    }
}

impl RawMemory for MetaMemory {
    fn allocate(&mut self, bytes: u64, _stream: Stream) -> Result<Placement, RawError> {
        self.take(bytes)?;
        if self.role == Role::Needs {
            self.page_tables.fetch_add(page_table_bytes(bytes), Ordering::Relaxed);
        }
        Ok(self.index(bytes))
    }

    fn free(&mut self, _address: u64, bytes: u64) -> Result<(), RawError> {
        self.used -= self.rounded(bytes);
        if self.role == Role::Needs {
            self.page_tables.fetch_sub(page_table_bytes(bytes), Ordering::Relaxed);
        }
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
        Capacity { free: self.available(), total: self.total }
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
