//! A block of device memory with one owner, and regions of it.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use memory::{Allocation, BlockId};

use crate::borrows::Borrows;
use crate::description::{Backend, DeviceAllocator};
use crate::error::{DeviceError, Result};

/// Device memory that returns to the caching allocator on drop, from any thread.
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

    /// Returns a buffer of the same memory that does not free it.
    pub(crate) fn unowned(&self) -> Self {
        let Buffer { backend, address, bytes, .. } = *self;
        Buffer { owner: None, backend, address, bytes, borrows: RefCell::default() }
    }

    /// Returns the requested bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the address on the device; on Meta, an address without memory.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the backend of the device.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Returns the region of `bytes` bytes from `offset` on. Its bounds are checked when a copy or collective
    /// uses it.
    pub fn region(&self, offset: usize, bytes: usize) -> Region<'_> {
        Region { buffer: self, offset, bytes }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some((allocator, block)) = self.owner.take() {
            let mut allocator = allocator.lock().unwrap_or_else(PoisonError::into_inner);
            // The block came from this allocator and is freed only here, so an error would be a bug of the
            // allocator.
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

/// A range of bytes of a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Region<'a> {
    /// The buffer.
    pub buffer: &'a Buffer,
    /// Offset of the first byte.
    pub offset: usize,
    /// Number of bytes.
    pub bytes: usize,
}

impl<'a> Region<'a> {
    /// Returns the device address of the first byte, after checking the region's bounds.
    pub(crate) fn checked_address(&self) -> Result<u64> {
        let end = self.end();
        if end > self.buffer.bytes {
            return Err(DeviceError::OutOfBounds { start: self.offset, end, bytes: self.buffer.bytes });
        }
        Ok(self.buffer.address + self.offset as u64)
    }

    /// Returns the offset of the region's end in the buffer.
    pub(crate) fn end(&self) -> usize {
        self.offset.saturating_add(self.bytes)
    }

    /// Returns a subregion; `offset` is relative to the region's start.
    pub fn part(&self, offset: usize, bytes: usize) -> Region<'a> {
        Region { buffer: self.buffer, offset: self.offset + offset, bytes }
    }
}
