//! A rank's statistics.

use memory::Usage;
use telemetry::{DriverAccount, GpuMonitor, PhaseTimes, RankStatistics, RankStep, Sources, host_name};

use super::Worker;
use crate::error::Result;

/// Memory of a rank after a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepMemory {
    /// Bytes in use.
    pub now: Usage,
    /// Peaks since the device was opened.
    pub peak: Usage,
    /// Peaks of the step alone.
    pub step_peak: Usage,
}

impl Worker {
    /// Returns the rank's statistics. Waits for the device.
    ///
    /// # Errors
    /// The device's.
    pub fn statistics(&mut self) -> Result<RankStatistics> {
        let phases = self.phases.times()?;
        let driver = self.account.close(&self.engine.device)?;
        Ok(self.counters(phases, driver))
    }

    /// Returns the rank's statistics, from the times of its phases and its driver's account.
    pub fn counters(&self, phases: PhaseTimes, driver: DriverAccount) -> RankStatistics {
        let traffic = self.engine.planes.traffic();
        self.engine.device.with_allocator(|allocator| {
            let sources = Sources {
                statistics: allocator.statistics(),
                live: allocator.category_bytes(),
                at_peak: allocator.peak_category_bytes(),
                traffic,
                driver,
                phases,
            };
            let device = &self.engine.device.description().name;
            RankStatistics::take(self.engine.grid.rank(), &host_name(), device, &sources)
        })
    }

    /// Returns the rank's record of the steps since the last call, without waiting for the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn record(&mut self) -> Result<RankStep> {
        let gpu = self.gpu.as_ref().and_then(GpuMonitor::latest);
        Ok(RankStep { gpu, ..self.phases.record()? })
    }

    /// Memory after the last step. Does not wait for the device.
    pub fn memory(&self) -> StepMemory {
        let step_peak = self.phases.last_peak();
        self.engine.device.with_allocator(|allocator| {
            let statistics = allocator.statistics();
            let peak = Usage { allocated: statistics.peak_allocated(), reserved: statistics.peak_reserved() };
            StepMemory { now: allocator.usage(), peak, step_peak }
        })
    }
}
