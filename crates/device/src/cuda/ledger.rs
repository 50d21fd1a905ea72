//! Device memory used outside the allocators, as the driver reports it.

use std::sync::atomic::Ordering;

use super::availability::contexts;
use crate::device::{Device, OnDevice};
use crate::error::DeviceError;

/// A reading of the driver's memory usage of one GPU, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ledger {
    /// Bytes used when the context was created, by the context and by other processes.
    pub context: u64,
    /// Bytes used by kernels and library handles, for all ranks of this process on the GPU.
    pub modules: u64,
    /// Bytes used by this rank's connections to other ranks.
    pub communicators: u64,
    /// `used` minus the three fields above and minus the bytes reserved by the allocators of all ranks of
    /// this process on the GPU.
    pub rest: i64,
    /// Total bytes in use.
    pub used: u64,
    /// Number of GPUs on which this process has a context.
    pub contexts: u64,
    /// Number of ranks of this process that have used the GPU since the context was created.
    pub ranks: u64,
}

impl Device {
    /// Reads the driver's memory usage; `None` on a device without a driver.
    pub fn ledger(&self) -> crate::Result<Option<Ledger>> {
        let Some(cuda) = self.gpu() else { return Ok(None) };
        let shared = &cuda.ledger.shared;
        let (used, reserved) = shared.read(&cuda.context).on(self)?;
        let modules = shared.modules.load(Ordering::SeqCst);
        let communicators = cuda.ledger.communicators.get();
        let rest = used as i64 - (shared.context + modules + communicators + reserved) as i64;
        let contexts = contexts().on(self)?;
        let context = shared.context;
        let ranks = shared.ranks.load(Ordering::SeqCst);
        Ok(Some(Ledger { context, modules, communicators, rest, used, contexts, ranks }))
    }

    /// Runs `body`, which connects to other ranks, and adds the device memory that it takes outside the
    /// allocator to [`Ledger::communicators`].
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
