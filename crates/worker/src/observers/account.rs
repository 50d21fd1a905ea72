//! Memory that the driver reports as used on a rank's device, by cause.

use device::Device;
use telemetry::DriverAccount;

use crate::error::Result;

/// Memory readings after each of the first two steps. Libraries still load modules during the first.
#[derive(Debug, Default)]
pub(crate) struct Account {
    steps: u32,
    /// Bytes used after the first step in addition to context, modules and allocator.
    warm_up: i64,
    /// Bytes used after the second step in addition to context, modules and allocator.
    second: i64,
}

impl Account {
    /// Returns whether a reading is due after the next step.
    pub(crate) fn reads_next(&self) -> bool {
        self.steps < 2
    }

    /// Takes a reading after each of the first two steps.
    pub(crate) fn after_step(&mut self, device: &Device) -> Result<()> {
        self.steps = self.steps.saturating_add(1);
        if self.steps > 2 {
            return Ok(());
        }
        let Some(ledger) = device.ledger()? else { return Ok(()) };
        if self.steps == 1 {
            self.warm_up = ledger.rest;
        }
        self.second = ledger.rest;
        Ok(())
    }

    /// Adds bytes that the driver took for CUDA graphs after the first two steps to the warm-up.
    pub(crate) fn add_warm_up(&mut self, bytes: i64) {
        self.warm_up += bytes;
        self.second += bytes;
    }

    /// Returns the used memory by cause; all zeros without a driver.
    pub(crate) fn close(&self, device: &Device) -> Result<DriverAccount> {
        let Some(ledger) = device.ledger()? else { return Ok(DriverAccount::default()) };
        let positive = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
        Ok(DriverAccount {
            context: ledger.context,
            modules: ledger.modules,
            communicators: ledger.communicators,
            warm_up: positive(self.warm_up),
            used: ledger.used,
            unaccounted: positive(ledger.rest - self.warm_up),
            unaccounted_growth: positive(ledger.rest - self.second),
            contexts: ledger.contexts,
            ranks: ledger.ranks,
        })
    }
}
