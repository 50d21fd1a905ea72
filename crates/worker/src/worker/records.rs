//! Begins and ends the records of a step, and observes its passes.

use autograd::Mode;
use telemetry::Phase;
use telemetry::step_trace::RunPart;

use super::Worker;
use crate::error::Result;
use crate::feed::observation::Observation;
use crate::observers::hooks::Moment;
use planned::Calendar;

impl Worker {
    /// Begins the records of step `step`.
    pub(super) fn begin_step(&mut self, step: u64) -> Result<()> {
        self.records.status.step(step, || self.engine.device.statistics());
        self.begin_part(RunPart::Step, step + 1);
        self.rehearse_repeatable(step)?;
        self.records.phases.begin()?;
        self.hash_state(step + 1)?;
        self.records.moments.train(true);
        self.begin_verified(step)
    }

    /// Begins the update of the current step, and sets its rates.
    pub(super) fn begin_update(&mut self) -> Result<()> {
        self.records.phases.enter(Phase::Update)?;
        self.records.moments.at(Moment::BeforeUpdate, None);
        self.set_rates()
    }

    /// Ends the records of step `step`, and empties the allocator's cache if that is due.
    pub(super) fn end_step(&mut self, step: u64) -> Result<()> {
        self.graphs.end_step(&self.engine.device);
        self.records.moments.at(Moment::AfterUpdate, None);
        self.records.phases.end()?;
        self.records.moments.train(false);
        if Calendar::new(&self.engine.setup.config).empties_after(step) {
            self.empty_cache(step)?;
        }
        if self.records.account.reads_next() && self.engine.setup.config.parallel.shares_gpu() {
            // The driver's account is of all ranks on the GPU, so that none may be in its first steps.
            self.engine.groups.control().barrier()?;
        }
        self.records.account.after_step(&self.engine.device)
    }

    /// Marks the beginning of a part of the run in the allocator's history.
    pub(crate) fn begin_part(&self, part: RunPart, step: u64) {
        self.engine.device.set_step(u32::try_from(step).unwrap_or(u32::MAX));
        self.engine.device.with_allocator(|allocator| allocator.mark(part.name(), step));
    }

    /// Returns the observers for the passes of a step that is trained or rehearsed.
    pub(super) fn observation(&self, mode: Mode) -> Observation {
        let records = &self.records;
        let mut observation = Observation::new(&self.engine.device, &records.phases);
        observation.is_step = true;
        observation.marks = records.marks.clone();
        if records.moments.has_hook() {
            observation.names = self.names_by_use();
            observation.moments = Some(records.moments.clone());
        }
        if mode == Mode::Train {
            observation.observers = records.observers.clone();
            observation.hashes = records.hashes.clone();
            observation.verification = records.verification.clone();
        }
        observation
    }
}
