//! The driver's memory usage when a device was created.

use std::cell::Cell;

use cudarc::driver::CudaContext;

use super::error::{Named, Result};

/// Used bytes at the start, as the driver counts them: those of all processes on the GPU.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) after_context: u64,
    pub(crate) after_modules: u64,
    /// Bytes that a communication library took.
    pub(crate) communicators: Cell<u64>,
}

/// Bytes in use on the device of a context.
pub(crate) fn used(context: &CudaContext) -> Result<u64> {
    let (free, total) = context.mem_get_info().named("cuMemGetInfo")?;
    Ok((total - free) as u64)
}
