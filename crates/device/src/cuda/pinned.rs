//! Pinned host memory, with which a GPU copies without blocking the host.
#![allow(unsafe_code)] // pinned memory is the driver's

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaContext, sys};
use memmap2::{MmapMut, MmapOptions};

use super::error::{CudaError, Named, Result};
use crate::parallel::for_pieces;

/// Bytes that a thread touches at once: the largest common page size.
const PIECE: usize = 1 << 21;
/// Bytes of the smallest page.
const PAGE: usize = 1 << 12;

/// A pinned block of host memory.
///
/// The driver's own allocation takes pages from the system one by one, on one thread. Here all threads touch
/// the pages first, as large pages where possible, and the driver then pins them.
pub(crate) struct Pinned {
    context: Arc<CudaContext>,
    map: MmapMut,
}

impl Pinned {
    /// Allocates a block of at least one byte, on any thread.
    ///
    /// # Errors
    /// Memory that the system does not have or that the driver cannot pin.
    pub(crate) fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self> {
        context.bind_to_thread().named("cuCtxSetCurrent")?;
        let mut map = MmapOptions::new().len(bytes).map_anon().map_err(|error| CudaError {
            call: "mmap",
            code: i64::from(error.raw_os_error().unwrap_or(0)),
            text: error.to_string(),
        })?;
        // A system without large pages has others.
        let _ = map.advise(memmap2::Advice::HugePage);
        for_pieces(&mut map, PIECE, |_, piece| piece.iter_mut().step_by(PAGE).for_each(|byte| *byte = 0));
        // SAFETY: the block is alive until `drop`, which unregisters it first.
        unsafe { sys::cuMemHostRegister_v2(map.as_mut_ptr().cast(), bytes, 0) }
            .result()
            .named("cuMemHostRegister")?;
        Ok(Pinned { context: Arc::clone(context), map })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.map.len()
    }

    /// Returns the bytes. Callers wait for copies into them before they read.
    pub(crate) fn slice(&self) -> &[u8] {
        &self.map
    }

    /// Returns the bytes for writing. Callers wait for copies out of them before they write.
    pub(crate) fn slice_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        // SAFETY: registered once in `new`; the driver waits for copies under way.
        let _ = unsafe { sys::cuMemHostUnregister(self.map.as_mut_ptr().cast()) };
    }
}

impl std::fmt::Debug for Pinned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pinned({} bytes)", self.map.len())
    }
}

/// A copy from a device address to a range of a pinned block.
pub(crate) struct PinnedCopy {
    pub(crate) address: u64,
    pub(crate) target: Range<usize>,
}
