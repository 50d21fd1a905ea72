//! Access to a rank's status, plan comparison and times.

use std::path::Path;
use std::rc::Rc;

use autograd::Observer;
use collective::{AxisTraffic, ControlChannel};
use device::Mark;
use parallel::pipeline::Skipped;
use planned::{Findings, Writing};
use telemetry::step_trace::{Divergence, RunPart};

use super::Worker;
use crate::error::Result;
use crate::feed::observation::Marks;
use crate::observers::operator_timer::OperatorTimer;
use crate::phases::Phases;
use telemetry::status::Status;

impl Worker {
    /// Returns the learning rate of step `step`, counted from 0.
    pub fn learning_rate(&self, step: u64) -> f32 {
        self.update.schedule.rate(step)
    }

    /// Returns the control channel between all ranks.
    pub fn control(&mut self) -> &mut dyn ControlChannel {
        self.engine.groups.control()
    }

    /// Returns the rank's traffic so far, by axis.
    pub fn traffic_by_axis(&self) -> AxisTraffic {
        self.engine.groups.traffic_by_axis()
    }

    /// Returns the totals of micro-batches that were skipped because they repeat others
    /// ([`Setup::plan_work`](crate::Setup)).
    pub fn skipped(&self) -> Skipped {
        self.records.skipped
    }

    /// Records every step and every call of the rank's process groups in `status`.
    pub fn report_to(&mut self, status: &Status) {
        self.records.status = status.clone();
        if let Some(observer) = status.observer() {
            self.engine.groups.observe(&observer);
        }
    }

    /// Sets the run directory. Memory traces are written there as soon as they exist, so that a killed run
    /// leaves them.
    pub fn write_traces_to(&mut self, run_dir: &Path) {
        self.records.watch.write_to(self.engine.grid.rank(), run_dir);
    }

    /// Starts writing the remaining traces, and returns the write to wait for.
    ///
    /// # Errors
    /// The write cannot be started.
    pub fn written_traces(&mut self) -> Result<Option<Writing>> {
        Ok(self.records.watch.written()?)
    }

    /// Returns the first part of the run whose memory differed from the plan; `None` if none did.
    pub fn divergence(&self) -> Option<&Divergence> {
        self.records.watch.divergence()
    }

    /// Returns sentences about when the rank's memory first differed from its plan, and about tensors that
    /// outlived their step.
    pub fn found_in_words(&self) -> Vec<String> {
        let outlived = self.records.watch.outlived().map(ToString::to_string);
        self.records.watch.divergence().map(ToString::to_string).into_iter().chain(outlived).collect()
    }

    /// Compares the part of the run that has just ended with the plan; `step` counts from 1.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn check_plan(&mut self, part: RunPart, step: u64) -> Result<()> {
        Ok(self.records.watch.check(&self.engine.device, part, step)?)
    }

    /// Gathers the differences of all ranks from their plans on rank 0; empty on the others.
    pub fn findings(&mut self) -> Result<Vec<Findings>> {
        Ok(self.records.watch.gather(self.engine.groups.control())?)
    }

    /// Returns the timer of the phases of this rank's steps.
    pub fn phases(&self) -> &Phases {
        &self.records.phases
    }

    /// Adds an observer of the operators of later steps.
    pub fn observe(&mut self, observer: Rc<dyn Observer>) {
        self.records.observers.push(observer);
    }

    /// Starts timing operators; [`Worker::end_timing`] stops it.
    pub fn time_operators(&mut self) -> OperatorTimer {
        let timer = OperatorTimer::new(&self.engine.device);
        self.records.phases.set_timer(Some(timer.clone()));
        self.records.observers.push(Rc::new(timer.clone()));
        timer
    }

    /// Stops timing operators.
    pub fn end_timing(&mut self) {
        self.records.phases.set_timer(None);
        self.records.observers.pop();
    }

    /// Runs step `step`. Returns when each part of its actions began, and when the last one ended.
    pub fn marked_step(&mut self, step: u64) -> Result<(Marks, Option<Mark>)> {
        self.records.marks = Some(Rc::default());
        let stepped = self.step(step);
        let marks = self.records.marks.take().map(|marks| marks.take()).unwrap_or_default();
        let ended = self.records.passes_ended.take();
        stepped.map(|()| (marks, ended))
    }
}
