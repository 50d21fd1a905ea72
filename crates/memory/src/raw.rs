//! The driver below the allocator: it provides memory in large segments and takes it back.

use serde::{Deserialize, Serialize};

/// A queue of device work, by its handle. `Stream(0)` is the default stream.
///
/// Memory allocated on a stream is reused on that stream only. The handle is a sort key of the free lists, so
/// a device should number its streams rather than pass addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Stream(pub u64);

/// A recorded position in a stream's work ([`RawMemory::record_event`]).
///
/// The allocator queries an event until it is done ([`RawMemory::event_done`] returned `true`, or
/// [`RawMemory::event_wait`] returned), and never again. The driver may then reuse the identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub u64);

/// Address of a segment, and its rank among equally good segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// First byte, as the device sees it.
    pub address: u64,
    /// Key that breaks ties between equally good blocks, before the address.
    ///
    /// Two segments that exist at the same time have different orders. A driver whose addresses are
    /// unpredictable numbers its segments; a replay, whose addresses are recorded, uses the address.
    pub order: u64,
}

/// Free and total memory of the device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Bytes not in use by any process.
    pub free: u64,
    /// Capacity of the device.
    pub total: u64,
}

/// Error of a driver call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RawError {
    /// The device has too little free memory. The allocator then releases cached segments and retries.
    #[error("the device is out of memory")]
    OutOfMemory,
    /// Any other failure, passed to the caller unchanged.
    #[error("driver error {code}: {text}")]
    Driver {
        /// The driver's error code.
        code: i64,
        /// The driver's error text.
        text: String,
    },
}

/// The driver below the allocator: memory in large pieces, virtual ranges with pages, and events on streams.
/// Sizes are in bytes.
///
/// A call that fails must have changed nothing.
pub trait RawMemory {
    /// Takes `bytes` of memory. The address must be a multiple of 512.
    ///
    /// # Errors
    /// [`RawError::OutOfMemory`] if the device has too little memory, [`RawError::Driver`] for other
    /// failures.
    fn allocate(&mut self, bytes: u64, stream: Stream) -> Result<Placement, RawError>;
    /// Returns a whole segment that [`RawMemory::allocate`] provided.
    ///
    /// # Errors
    /// [`RawError::Driver`]; the memory then still belongs to the allocator.
    fn free(&mut self, address: u64, bytes: u64) -> Result<(), RawError>;
    /// Reserves a virtual range without mapping memory.
    fn reserve(&mut self, bytes: u64, stream: Stream) -> Result<Placement, RawError>;
    /// Returns a range that has no mapped pages.
    ///
    /// # Errors
    /// [`RawError::Driver`]; the range then still belongs to the allocator.
    fn unreserve(&mut self, address: u64, bytes: u64) -> Result<(), RawError>;
    /// Maps `bytes` from `address` on, in pages of `page` bytes: all of them or none.
    fn map(&mut self, address: u64, bytes: u64, page: u64, stream: Stream) -> Result<(), RawError>;
    /// Unmaps whole pages, after waiting for the work of the range's stream.
    ///
    /// # Errors
    /// [`RawError::Driver`]; the pages then stay mapped.
    fn unmap(&mut self, address: u64, bytes: u64, page: u64) -> Result<(), RawError>;
    /// Returns the free and total memory of the device.
    fn capacity(&self) -> Capacity;
    /// Records an event after the work enqueued on `stream` so far.
    fn record_event(&mut self, stream: Stream) -> Result<EventId, RawError>;
    /// Returns whether the work before the event is done.
    fn event_done(&mut self, event: EventId) -> Result<bool, RawError>;
    /// Waits until the work before the event is done.
    fn event_wait(&mut self, event: EventId) -> Result<(), RawError>;
}

impl<R: RawMemory + ?Sized> RawMemory for Box<R> {
    fn allocate(&mut self, bytes: u64, stream: Stream) -> Result<Placement, RawError> {
        (**self).allocate(bytes, stream)
    }
    fn free(&mut self, address: u64, bytes: u64) -> Result<(), RawError> {
        (**self).free(address, bytes)
    }
    fn reserve(&mut self, bytes: u64, stream: Stream) -> Result<Placement, RawError> {
        (**self).reserve(bytes, stream)
    }
    fn unreserve(&mut self, address: u64, bytes: u64) -> Result<(), RawError> {
        (**self).unreserve(address, bytes)
    }
    fn map(&mut self, address: u64, bytes: u64, page: u64, stream: Stream) -> Result<(), RawError> {
        (**self).map(address, bytes, page, stream)
    }
    fn unmap(&mut self, address: u64, bytes: u64, page: u64) -> Result<(), RawError> {
        (**self).unmap(address, bytes, page)
    }
    fn capacity(&self) -> Capacity {
        (**self).capacity()
    }
    fn record_event(&mut self, stream: Stream) -> Result<EventId, RawError> {
        (**self).record_event(stream)
    }
    fn event_done(&mut self, event: EventId) -> Result<bool, RawError> {
        (**self).event_done(event)
    }
    fn event_wait(&mut self, event: EventId) -> Result<(), RawError> {
        (**self).event_wait(event)
    }
}
