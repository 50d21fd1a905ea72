//! A rank's statistics.

use telemetry::{DriverAccount, PhaseTimes, RankStatistics, Sources, host_name};

use super::Worker;
use crate::error::Result;

impl Worker {
    /// Returns the rank's statistics. Waits for the device. Errors: the device's.
    pub fn statistics(&mut self) -> Result<RankStatistics> {
        let phases = self.phases.times()?;
        let driver = self.account.close(&self.device)?;
        Ok(self.counters(phases, driver))
    }

    /// Returns the rank's statistics, given the times of its phases and its driver's account.
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
