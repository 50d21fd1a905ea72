//! cuBLASLt's handles, one for each device that is open in this process.
//!
//! Destroying a handle may synchronise the GPU's context, which breaks captures of other devices on this GPU.
//! So a handle that is no longer used waits for the next device, or for the last device of its GPU to close.
#![allow(unsafe_code)] // cuBLASLt's handles

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::cublaslt::{result, sys};

use super::error::{Named, Result};

/// A handle for one device on a GPU.
pub(super) struct Handle {
    raw: sys::cublasLtHandle_t,
    ordinal: usize,
}

/// Handles of one GPU.
#[derive(Default)]
struct OfGpu {
    /// Number of handles in use.
    used: usize,
    idle: Vec<Idle>,
}

/// A handle that no device uses.
struct Idle(sys::cublasLtHandle_t);

// SAFETY: cuBLASLt's handles may be used by any thread.
unsafe impl Send for Idle {}

static HANDLES: Mutex<BTreeMap<usize, OfGpu>> = Mutex::new(BTreeMap::new());

fn handles() -> MutexGuard<'static, BTreeMap<usize, OfGpu>> {
    HANDLES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Handle {
    /// Returns an idle or a new handle for GPU `ordinal`, whose context is current.
    pub(super) fn open(ordinal: usize) -> Result<Self> {
        let mut handles = handles();
        let of_gpu = handles.entry(ordinal).or_default();
        let raw = match of_gpu.idle.pop() {
            Some(Idle(raw)) => raw,
            None => result::create_handle().named("cublasLtCreate")?,
        };
        of_gpu.used += 1;
        Ok(Handle { raw, ordinal })
    }

    pub(super) fn raw(&self) -> sys::cublasLtHandle_t {
        self.raw
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut handles = handles();
        let of_gpu = handles.entry(self.ordinal).or_default();
        of_gpu.used -= 1;
        of_gpu.idle.push(Idle(self.raw));
        if of_gpu.used > 0 {
            return;
        }
        for Idle(raw) in of_gpu.idle.drain(..) {
            // SAFETY: made once in `open`, destroyed once, while the device that closes keeps its context.
            let _ = unsafe { result::destroy_handle(raw) };
        }
    }
}
