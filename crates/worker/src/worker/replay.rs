//! Steps that are captured in CUDA graphs, and replayed.

use std::rc::Rc;

use device::StreamKind;

use super::Worker;
use super::step::set_target_count;
use crate::calendar::Calendar;
use crate::error::Result;
use crate::evaluation::Evaluation;
use crate::feed::WorkerFeed;
use crate::feed::numbers::Numbers;
use crate::graphs::{Course, Recorder, Stop};

impl Worker {
    /// Runs the passes and the update of step `step`: from its graphs if it has been captured.
    ///
    /// # Errors
    /// Errors of the step.
    pub(super) fn run(&mut self, step: u64) -> Result<()> {
        // Every step gathers all sharded weights, also after a validation, as a replayed one does.
        self.outdate_weights();
        match self.graphs.next(&self.engine.device, self.not_captured(step)) {
            Course::Plain => self.compute(step),
            Course::Recorded => self.record_graphs(step),
            Course::Replayed => self.replay(step),
        }
    }

    /// Number of steps so far that were replayed from CUDA graphs.
    pub fn replayed_steps(&self) -> u64 {
        self.graphs.replays()
    }

    /// Number of validation micro-batches so far that were replayed from CUDA graphs.
    pub fn replayed_validations(&self) -> u64 {
        self.engine.evaluation.as_ref().map_or(0, Evaluation::replays)
    }

    /// Returns a reason why step `step` cannot be captured, if there is one that holds for some steps only.
    fn not_captured(&self, step: u64) -> Option<&'static str> {
        let observes = !self.observers.is_empty() || self.moments.has_hook() || self.phases.has_timer();
        let reasons = [
            // The driver's account of the first steps is that of a run without graphs.
            (self.account.reads_next(), ""),
            (observes, "operators are observed"),
            (self.marks.is_some(), "the parts of the step are timed"),
            (self.hashes.is_some(), "the tensors of steps are hashed"),
            (Calendar::new(&self.engine.setup.config).verifies(step), "the step is verified"),
        ];
        let reason = reasons.into_iter().find(|(holds, _)| *holds).map(|(_, reason)| reason);
        reason.or_else(|| self.engine.device.refuses_capture())
    }

    /// Runs a step while it is captured.
    fn record_graphs(&mut self, step: u64) -> Result<()> {
        let device = self.engine.device.clone();
        let before = device.ledger()?;
        let recorder = Rc::new(Recorder::start(&device)?);
        self.phases.set_recorder(Some(Rc::clone(&recorder)));
        let ran = self.compute(step);
        self.phases.set_recorder(None);
        let finished = ran.and_then(|()| recorder.finish(self.numbers(step).number(0)));
        let captured = finished.inspect_err(|_| {
            recorder.abandon();
            tracing::error!(
                "the step failed while it was captured in CUDA graphs: train.graphs = \"off\" runs it without"
            );
        })?;
        self.graphs.keep(captured)?;
        if let (Some(before), Some(after)) = (before, device.ledger()?) {
            self.account.add_warm_up(after.rest - before.rest);
        }
        Ok(())
    }

    /// The numbers of the micro-batches of step `step`.
    fn numbers(&self, step: u64) -> Numbers<'_> {
        let setup = &self.engine.setup;
        Numbers::training(&setup.config, &self.engine.grid, step, &setup.left_out)
    }

    /// Replays the captured step as step `step`.
    fn replay(&mut self, step: u64) -> Result<()> {
        let Some(mut captured) = self.graphs.take() else { return self.compute(step) };
        let is_next = self.graphs.is_next(&self.engine.device);
        let (device, setup) = (&self.engine.device, &self.engine.setup);
        let numbers = Numbers::training(&setup.config, &self.engine.grid, step, &setup.left_out);
        let (data, phases) = ((&mut self.data, &*self.data_order), &mut self.phases);
        let source = (&*setup.config, &setup.dataset, &self.engine.grid);
        let mut feed = WorkerFeed::new(device, source, numbers, data, phases);
        feed.pixels = self.engine.pixels.as_mut();
        captured.replay(device, (numbers.number(0), is_next), |stop, written| match stop {
            Stop::Snapshot => {
                let mut copying = self.copying.drain(..);
                copying.try_for_each(|copied| Ok(device.wait_shared(StreamKind::Compute, &copied)?))
            }
            Stop::TargetCount => set_target_count(self.norm.norm.state(), setup, &numbers),
            Stop::LearningRate => Ok(self.norm.norm.state().set_learning_rate(self.schedule.rate(step))?),
            other => feed.stop_again(other, written),
        })?;
        self.outdate_weights();
        self.graphs.restore(captured);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
