//! Signals: words of host memory through which the streams of several GPUs wait for each other.
//!
//! The words are in host memory, not on a device, so that a host that gives up can end its own GPU's waits
//! with a plain store. Work enqueued behind a waiting stream would never run. A waiting stream occupies no
//! multiprocessor.
#![allow(unsafe_code)] // memory that GPUs write, and stream operations on it

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::{CudaContext, sys};
use memmap2::MmapMut;

use super::error::{CudaError, Named, Result};

/// Bytes of a page of signals.
const PAGE_BYTES: usize = 4096;
/// Bytes between words: each word has its own cache line on the host.
const SPACING: usize = 64;

/// A page of words for which one GPU waits and to which others write, mapped for one GPU and its host.
#[derive(Debug)]
pub struct SignalPage {
    map: MmapMut,
    context: Arc<CudaContext>,
    address: u64,
}

/// A word of a page, by its address on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(u64);

impl SignalPage {
    /// Number of words of a page.
    pub const WORDS: usize = PAGE_BYTES / SPACING;
    /// Length of the page's file in bytes.
    pub const BYTES: usize = PAGE_BYTES;

    /// Maps a file of [`SignalPage::BYTES`] zeros.
    pub(super) fn of_file(file: &File, context: &Arc<CudaContext>) -> Result<Self> {
        // SAFETY: the file is anonymous memory shared only by these ranks, and all access to it is atomic.
        let map = unsafe { memmap2::MmapOptions::new().len(PAGE_BYTES).map_mut(file) };
        Self::registered(map.map_err(refused)?, context)
    }

    /// Creates a page for this process alone.
    pub(super) fn own(context: &Arc<CudaContext>) -> Result<Self> {
        Self::registered(MmapMut::map_anon(PAGE_BYTES).map_err(refused)?, context)
    }

    /// Registers a page with the driver.
    fn registered(mut map: MmapMut, context: &Arc<CudaContext>) -> Result<Self> {
        let (memory, flags) =
            (map.as_mut_ptr().cast(), sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP);
        // SAFETY: the mapping is alive until it is unregistered in `drop`.
        unsafe { sys::cuMemHostRegister_v2(memory, PAGE_BYTES, flags) }
            .result()
            .named("cuMemHostRegister")?;
        let mut page = SignalPage { map, context: Arc::clone(context), address: 0 };
        // SAFETY: the memory was registered just now, and the call writes an address.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut page.address, memory, 0) }
            .result()
            .named("cuMemHostGetDevicePointer")?;
        Ok(page)
    }

    /// Returns word `index`, as the GPU addresses it. An index beyond the last word gives the last word.
    pub fn word(&self, index: usize) -> Word {
        Word(self.address + (index.min(Self::WORDS - 1) * SPACING) as u64)
    }

    /// Writes a word from the host, which ends the GPUs' waits for it.
    pub fn store(&self, index: usize, value: u32) {
        self.host(index).store(value, Ordering::SeqCst);
    }

    /// Reads a word on the host.
    pub fn load(&self, index: usize) -> u32 {
        self.host(index).load(Ordering::SeqCst)
    }

    fn host(&self, index: usize) -> &AtomicU32 {
        let offset = index.min(Self::WORDS - 1) * SPACING;
        let word = self.map.as_ptr().wrapping_add(offset).cast_mut().cast();
        // SAFETY: the aligned word lies in the mapping, which lives as long as `self`; hosts and GPUs access
        // it atomically, and no plain reference to it exists.
        unsafe { AtomicU32::from_ptr(word) }
    }
}

impl Drop for SignalPage {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        // SAFETY: registered once at creation; the work that uses it is done.
        let _ = unsafe { sys::cuMemHostUnregister(self.map.as_mut_ptr().cast()) };
    }
}

/// Enqueues writes and then waits on `stream`, as [`Device::signal`](crate::Device::signal) does.
pub(super) fn enqueue(stream: sys::CUstream, writes: &[(Word, u32)], waits: &[(Word, u32)]) -> Result<()> {
    let write = |(word, value): &(Word, u32)| write_operation(*word, *value);
    let wait = |(word, value): &(Word, u32)| wait_operation(*word, *value);
    let mut operations: Vec<_> = writes.iter().map(write).chain(waits.iter().map(wait)).collect();
    // SAFETY: the pages of the words stay mapped until the work on them is done, as their owner promises; the
    // operations are alive during the call.
    unsafe { sys::cuStreamBatchMemOp_v2(stream, operations.len() as u32, operations.as_mut_ptr(), 0) }
        .result()
        .named("cuStreamBatchMemOp")
}

/// Converts the error of a system call for a page.
pub(super) fn refused(error: std::io::Error) -> CudaError {
    let code = i64::from(error.raw_os_error().unwrap_or(0));
    CudaError { call: "page of signals", code, text: error.to_string() }
}

fn write_operation(Word(address): Word, value: u32) -> sys::CUstreamBatchMemOpParams {
    use sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 as Value;
    let mut operation = sys::CUstreamBatchMemOpParams { pad: [0; 6] };
    operation.writeValue = sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st {
        operation: sys::CUstreamBatchMemOpType_enum::CU_STREAM_MEM_OP_WRITE_VALUE_32,
        address,
        __bindgen_anon_1: Value { value },
        flags: sys::CUstreamWriteValue_flags_enum::CU_STREAM_WRITE_VALUE_DEFAULT as u32,
        alias: 0,
    };
    operation
}

fn wait_operation(Word(address): Word, value: u32) -> sys::CUstreamBatchMemOpParams {
    use sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1 as Value;
    let mut operation = sys::CUstreamBatchMemOpParams { pad: [0; 6] };
    operation.waitValue = sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st {
        operation: sys::CUstreamBatchMemOpType_enum::CU_STREAM_MEM_OP_WAIT_VALUE_32,
        address,
        __bindgen_anon_1: Value { value },
        flags: sys::CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_GEQ as u32,
        alias: 0,
    };
    operation
}
