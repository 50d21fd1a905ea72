//! Device memory used outside the allocator, as the driver counts it.

use super::account::used;
use super::availability::contexts;
use crate::device::Device;
use crate::error::DeviceError;

/// A reading of the driver's memory usage of one GPU, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ledger {
    /// Bytes used when the context was created: the context's and those of other processes.
    pub context: u64,
    /// Bytes used by kernels and library handles, which were loaded next.
    pub modules: u64,
    /// Bytes used by connections to other ranks.
    pub communicators: u64,
    /// Bytes used at present, minus the three above and minus the allocator's reserved bytes.
    pub rest: i64,
    /// Total bytes used at present.
    pub used: u64,
    /// Number of GPUs on which this process has a context.
    pub contexts: u64,
}

impl Device {
    /// Reads the driver's memory usage; `None` if there is no driver.
    pub fn ledger(&self) -> crate::Result<Option<Ledger>> {
        let Some(cuda) = self.gpu() else { return Ok(None) };
        let used = used(&cuda.context).map_err(|error| self.cuda_error(error))?;
        let start = &cuda.ledger;
        let reserved = self.statistics().reserved();
        let modules = start.after_modules.saturating_sub(start.after_context);
        let communicators = start.communicators.get();
        let known = start.after_context + modules + communicators + reserved;
        let rest = used as i64 - known as i64;
        let contexts = contexts().map_err(|error| self.cuda_error(error))?;
        Ok(Some(Ledger { context: start.after_context, modules, communicators, rest, used, contexts }))
    }

    /// Runs `body` and counts the device memory that it takes outside the allocator as connections to other
    /// ranks. Errors: those of `body` and the driver.
    pub fn connecting<T, E: From<DeviceError>>(
        &self,
        body: impl FnOnce() -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let before = self.ledger()?;
        let done = body()?;
        if let (Some(cuda), Some(before), Some(after)) = (self.gpu(), before, self.ledger()?) {
            let taken = u64::try_from(after.rest - before.rest).unwrap_or(0);
            cuda.ledger.communicators.set(before.communicators + taken);
        }
        Ok(done)
    }
}
