//! A rank's counters, as they are reported.

use telemetry::{DriverAccount, PhaseTimes, RankStatistics, Sources, host_name};

use super::Worker;
use crate::error::Result;

impl Worker {
    /// The rank's counters now. Waits for the device. Errors: the device's.
    pub fn statistics(&mut self) -> Result<RankStatistics> {
        let phases = self.phases.times()?;
        let driver = self.account.close(&self.device)?;
        Ok(self.counters(phases, driver))
    }

    /// The rank's counters now, with what was found of its time and its device's driver.
    pub fn counters(&self, phases: PhaseTimes, driver: DriverAccount) -> RankStatistics {
        let traffic = self.planes.traffic();
        self.device.with_allocator(|allocator| {
            let sources = Sources {
                statistics: allocator.statistics(),
                live: allocator.category_bytes(),
                at_peak: allocator.peak_category_bytes(),
                traffic,
                driver,
                phases,
            };
            let device = &self.device.description().name;
            RankStatistics::take(self.grid.rank(), &host_name(), device, &sources)
        })
    }
}
