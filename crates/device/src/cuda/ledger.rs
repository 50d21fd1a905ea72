//! Device memory that is used outside of the allocator, by the driver's account.

use super::account::used;
use super::availability::contexts;
use crate::device::Device;
use crate::error::DeviceError;

/// A reading of the driver's account of one GPU, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ledger {
    /// Used when the context was made: the context, and whatever other processes had.
    pub context: u64,
    /// Used by kernels and library handles, which came next.
    pub modules: u64,
    /// Bytes that connections to other ranks took.
    pub communicators: u64,
    /// Used now, less all of these and less what the allocator has reserved.
    pub rest: i64,
    /// Used now, in all.
    pub used: u64,
    /// GPUs on which this process has a context.
    pub contexts: u64,
}

impl Device {
    /// The driver's account now; `None` where there is no driver.
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

    /// Does `body`, and accounts for what it takes of the device beside the allocator as connections to other
    /// ranks. Errors: its own; the driver's.
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
