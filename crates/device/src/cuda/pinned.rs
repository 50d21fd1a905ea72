//! Pinned host memory, which a GPU copies to and from while the host goes on.
#![allow(unsafe_code)] // pinned memory is the driver's

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaContext, result};

use super::error::{Named, Result};

/// A pinned block of host memory.
pub(crate) struct Pinned {
    context: Arc<CudaContext>,
    pointer: *mut u8,
    bytes: usize,
}

// SAFETY: the block has one owner, and any thread may read, write and free it.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Allocates a block of at least one byte, on any thread.
    ///
    /// # Errors
    /// Memory that the driver cannot pin.
    pub(crate) fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self> {
        context.bind_to_thread().named("cuCtxSetCurrent")?;
        // SAFETY: the driver returns pages that the system has filled, and `drop` frees them.
        let pointer = unsafe { result::malloc_host(bytes, 0) }.named("cuMemHostAlloc")?;
        Ok(Pinned { context: Arc::clone(context), pointer: pointer.cast(), bytes })
    }

    /// Number of bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn slice(&self) -> &[u8] {
        // SAFETY: the block is alive and has values; callers wait for copies into it before they read.
        unsafe { std::slice::from_raw_parts(self.pointer, self.bytes) }
    }

    pub(crate) fn slice_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and callers wait for copies out of it before they write.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        // SAFETY: allocated in `new`, freed once; the driver waits for copies under way.
        let _ = unsafe { result::free_host(self.pointer.cast()) };
    }
}

impl std::fmt::Debug for Pinned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pinned({} bytes)", self.bytes)
    }
}

/// A copy of device memory, from an address, to a range of a pinned block.
pub(crate) struct PinnedCopy {
    pub(crate) address: u64,
    pub(crate) target: Range<usize>,
}
