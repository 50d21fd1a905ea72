//! A block of device memory with one owner, and regions of it.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use memory::{Allocation, BlockId};

use crate::borrows::Borrows;
use crate::description::{Backend, DeviceAllocator};
use crate::error::{DeviceError, Result};

/// Device memory that goes back to the caching allocator when dropped, on whichever thread that is.
pub struct Buffer {
    owner: Option<(Arc<Mutex<DeviceAllocator>>, BlockId)>,
    pub(crate) backend: Backend,
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    pub(crate) borrows: RefCell<Borrows>,
}

impl Buffer {
    pub(crate) fn new(
        allocator: Arc<Mutex<DeviceAllocator>>,
        backend: Backend,
        taken: Allocation,
        bytes: usize,
    ) -> Self {
        let owner = Some((allocator, taken.block));
        Buffer { owner, backend, address: taken.address, bytes, borrows: RefCell::default() }
    }

    pub(crate) fn null(backend: Backend) -> Self {
        Buffer { owner: None, backend, address: 0, bytes: 0, borrows: RefCell::default() }
    }

    /// Bytes that were asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Address on the device: made up on Meta, else real.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Backend of the device.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// `bytes` bytes from `offset` on, to pass to a copy or a collective (checked there).
    pub fn region(&self, offset: usize, bytes: usize) -> Region<'_> {
        Region { buffer: self, offset, bytes }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some((allocator, block)) = self.owner.take() {
            let mut allocator = allocator.lock().unwrap_or_else(PoisonError::into_inner);
            // The block came from this allocator and is freed once: a refusal would be a bug in it.
            let freed = allocator.free(block);
            debug_assert!(freed.is_ok(), "{freed:?}");
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({:?}, {} bytes at {:#x})", self.backend, self.bytes, self.address)
    }
}

/// Some bytes of a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Region<'a> {
    /// First element in the buffer.
    pub buffer: &'a Buffer,
    /// First byte.
    pub offset: usize,
    /// Number of elements.
    pub bytes: usize,
}

impl<'a> Region<'a> {
    /// Device address of the first element. Errors: a region outside its buffer.
    pub(crate) fn checked_address(&self) -> Result<u64> {
        let end = self.end();
        if end > self.buffer.bytes {
            return Err(DeviceError::OutOfBounds { start: self.offset, end, bytes: self.buffer.bytes });
        }
        Ok(self.buffer.address + self.offset as u64)
    }

    /// End in the buffer.
    pub(crate) fn end(&self) -> usize {
        self.offset.saturating_add(self.bytes)
    }

    /// A part of it, relative to its start.
    pub fn part(&self, offset: usize, bytes: usize) -> Region<'a> {
        Region { buffer: self.buffer, offset: self.offset + offset, bytes }
    }
}
