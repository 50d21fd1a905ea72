//! Statistics of a rank.

use collective::Axis;
use device::Device;
use memory::Usage;
use telemetry::{
    DriverAccount, ExpertLoads, GpuMonitor, PhaseTimes, RankRecord, RankStatistics, RankStep, Sources,
    host_name,
};

use super::Worker;
use crate::error::Result;

/// Memory of a rank after a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepMemory {
    /// Bytes in use now.
    pub now: Usage,
    /// Peaks since the device was opened.
    pub peak: Usage,
    /// Peaks of the step alone.
    pub step_peak: Usage,
}

impl Worker {
    /// Returns the rank's statistics. Waits for the device.
    pub fn statistics(&mut self) -> Result<RankStatistics> {
        let phases = self.records.phases.times()?;
        let driver = self.records.account.close(&self.engine.device)?;
        Ok(self.counters(phases, driver))
    }

    /// Returns the rank's statistics, with these phase times and this driver memory account.
    pub fn counters(&self, phases: PhaseTimes, driver: DriverAccount) -> RankStatistics {
        let traffic = self.engine.groups.traffic();
        let host = self.update.host.as_ref().map(Device::statistics);
        let host = host.map_or(Usage::default(), |statistics| Usage {
            allocated: statistics.allocated(),
            reserved: statistics.peak_reserved(),
        });
        self.engine.device.with_allocator(|allocator| {
            let sources = Sources {
                statistics: allocator.statistics(),
                live: allocator.category_bytes(),
                at_peak: allocator.peak_category_bytes(),
                host,
                traffic,
                driver,
                phases,
            };
            let device = &self.engine.device.description().name;
            RankStatistics::take(self.engine.grid.rank(), &host_name(), device, &sources)
        })
    }

    /// Returns the rank's record of the steps since the last call, without waiting for the device.
    pub fn record(&mut self) -> Result<RankRecord> {
        let gpu = self.records.gpu.as_ref().and_then(GpuMonitor::latest);
        let figures = RankStep { gpu, ..self.records.phases.record()? };
        Ok(RankRecord { figures, expert_loads: self.expert_loads()? })
    }

    /// Returns the last step's expert loads, if this rank is the first one with its stages; otherwise empty.
    fn expert_loads(&self) -> Result<Vec<ExpertLoads>> {
        let axes = [Axis::Data, Axis::Context, Axis::Tensor];
        let mut loads = Vec::new();
        let is_first = self.engine.grid.coordinate_over(&axes) == 0;
        for part in self.stages.parts.iter().filter(|_| is_first && !self.engine.device.is_meta()) {
            let counted = part.model.parameters().expert_loads();
            let Some(sums) = counted.sums() else { continue };
            let mut sums = sums.to_vec::<u32>()?.into_iter();
            let layer_loads =
                |(layer, experts)| ExpertLoads { layer, tokens: sums.by_ref().take(experts).collect() };
            loads.extend(counted.layers().into_iter().map(layer_loads));
        }
        Ok(loads)
    }

    /// Returns the memory use after the last step. Does not wait for the device.
    pub fn memory(&self) -> StepMemory {
        let step_peak = self.records.phases.last_peak();
        self.engine.device.with_allocator(|allocator| {
            let statistics = allocator.statistics();
            let peak = Usage { allocated: statistics.peak_allocated(), reserved: statistics.peak_reserved() };
            StepMemory { now: allocator.usage(), peak, step_peak }
        })
    }
}
