//! What the driver says is used, beside what the allocator reserved.

use cudarc::driver::CudaContext;

use super::error::{Named, Result};
use crate::device::Device;

/// Used bytes at the start, as the driver counts them: everybody's on the GPU, not this process's alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub(crate) after_context: u64,
    pub(crate) after_modules: u64,
}

/// A reading of the driver's account of one GPU, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ledger {
    /// Used when the context was made: the context, and whatever other processes had.
    pub context: u64,
    /// Used by kernels and library handles, which came next.
    pub modules: u64,
    /// Used now, less both and less what the allocator has reserved.
    pub rest: i64,
    /// Used now, in all.
    pub used: u64,
}

pub(crate) fn used(context: &CudaContext) -> Result<u64> {
    let (free, total) = context.mem_get_info().named("cuMemGetInfo")?;
    Ok((total - free) as u64)
}

impl Device {
    /// The driver's account now; `None` where there is no driver.
    pub fn ledger(&self) -> crate::Result<Option<Ledger>> {
        let Some(cuda) = self.gpu() else { return Ok(None) };
        let used = used(&cuda.context).map_err(|error| self.cuda_error(error))?;
        let start = cuda.ledger;
        let reserved = self.statistics().reserved();
        let modules = start.after_modules.saturating_sub(start.after_context);
        let rest = used as i64 - start.after_context as i64 - modules as i64 - reserved as i64;
        Ok(Some(Ledger { context: start.after_context, modules, rest, used }))
    }
}
