//! The driver's account at the start of a device.

use std::cell::Cell;

use cudarc::driver::CudaContext;

use super::error::{Named, Result};

/// Used bytes at the start, as the driver counts them: everybody's on the GPU, not this process's alone.
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
