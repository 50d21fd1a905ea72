//! Memory of a rank's steps by phase. The host allocates while it enqueues, so the figures are known once a
//! step is enqueued, before the device has run it.

use device::Device;
use memory::Usage;
use telemetry::{Phase, PhaseFigures, RankStep, VALIDATION};

/// Memory figures of each phase that a step has entered.
type Figures = [Option<PhaseFigures>; Phase::ALL.len()];

/// A completed step.
#[derive(Clone, Copy, Debug)]
struct Step {
    number: u64,
    peak: Usage,
    figures: Figures,
}

/// Measures the memory of each phase of a step. Keeps the step with the highest peak until it is taken.
#[derive(Debug)]
pub(crate) struct PhaseMemory {
    device: Device,
    /// The phase being enqueued; `None` between steps.
    now: Option<Phase>,
    current: Figures,
    /// Peaks of the last completed step.
    last: Usage,
    largest: Option<Step>,
    validation: Option<PhaseFigures>,
}

impl PhaseMemory {
    pub(crate) fn new(device: &Device) -> Self {
        PhaseMemory {
            device: device.clone(),
            now: None,
            current: Figures::default(),
            last: Usage::default(),
            largest: None,
            validation: None,
        }
    }

    /// Begins a step, and discards an unfinished one.
    pub(crate) fn begin(&mut self) {
        (self.now, self.current) = (None, Figures::default());
        self.lap();
    }

    /// Leaves the current phase and enters `phase`.
    pub(crate) fn enter(&mut self, phase: Phase) {
        let now = self.leave();
        self.now = Some(phase);
        self.current[phase.index()].get_or_insert_with(|| PhaseFigures::begin(now));
    }

    /// Ends the step.
    pub(crate) fn end(&mut self) {
        self.leave();
        let Some(peak) = self.current.iter().flatten().map(PhaseFigures::peak).reduce(Usage::most) else {
            return;
        };
        self.last = peak;
        let height = |step: &Step| (step.peak.allocated, step.peak.reserved);
        let step = Step { number: self.device.step().into(), peak, figures: self.current };
        if self.largest.as_ref().is_none_or(|largest| height(&step) >= height(largest)) {
            self.largest = Some(step);
        }
    }

    /// Begins to measure a validation.
    pub(crate) fn begin_validation(&mut self) {
        let (_, now) = self.lap();
        self.validation.get_or_insert_with(|| PhaseFigures::begin(now));
    }

    /// Ends measuring a validation.
    pub(crate) fn end_validation(&mut self) {
        let (peak, now) = self.lap();
        if let Some(validation) = &mut self.validation {
            validation.add(peak, now);
        }
    }

    /// Returns the peaks of the last completed step.
    pub(crate) fn last_peak(&self) -> Usage {
        self.last
    }

    /// Returns the rank's record of the steps since the last call, without times.
    pub(crate) fn take(&mut self) -> RankStep {
        let mut record = self.device.with_allocator(|allocator| {
            let now = allocator.usage();
            let statistics = allocator.statistics();
            RankStep {
                allocated_bytes: now.allocated,
                reserved_bytes: now.reserved,
                capacity_bytes: allocator.capacity(),
                peak_allocated_bytes: statistics.peak_allocated(),
                peak_reserved_bytes: statistics.peak_reserved(),
                ..RankStep::default()
            }
        });
        record.rank = self.device.rank();
        if let Some(step) = self.largest.take() {
            record.step = step.number;
            (record.step_peak_allocated_bytes, record.step_peak_reserved_bytes) =
                (step.peak.allocated, step.peak.reserved);
            let entered = Phase::ALL.into_iter().zip(step.figures);
            record.phases =
                entered.filter_map(|(phase, figures)| Some((phase.name().to_owned(), figures?))).collect();
        }
        record.phases.extend(self.validation.take().map(|figures| (VALIDATION.to_owned(), figures)));
        record
    }

    /// Returns the peaks since the last call, and the current usage.
    fn lap(&self) -> (Usage, Usage) {
        self.device.with_allocator(|allocator| (allocator.take_recent_peak(), allocator.usage()))
    }

    /// Leaves the current phase, and returns the current usage.
    fn leave(&mut self) -> Usage {
        let (peak, now) = self.lap();
        if let Some(figures) = self.now.take().and_then(|phase| self.current[phase.index()].as_mut()) {
            figures.add(peak, now);
        }
        now
    }
}
