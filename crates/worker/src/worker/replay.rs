//! Captures steps in CUDA graphs and replays them.

use super::Worker;
use crate::error::Result;
use crate::graphs::StepMode;
use planned::Calendar;

impl Worker {
    /// Runs the passes and the update of step `step`, replaying its graphs if they were captured.
    ///
    /// # Errors
    /// Errors of the step.
    pub(super) fn run(&mut self, step: u64) -> Result<()> {
        self.batches.follow(self.numbers(step));
        // Every step gathers all sharded weights, also after a validation, as a replayed one does.
        self.outdate_weights();
        let length = self.sequence_length(step);
        match self.graphs.next(&self.engine.device, length, self.not_captured(step)) {
            StepMode::Plain => self.compute(step),
            StepMode::Recorded => self.record_graphs(step, length),
            StepMode::Replayed => self.replay(step, length),
        }
    }

    /// Returns the number of tokens per sequence in step `step`.
    fn sequence_length(&self, step: u64) -> usize {
        let shape = self.engine.setup.dataset.source.shape_of(self.numbers(step).id(0));
        shape.inputs.extents.get(1).copied().unwrap_or_default()
    }

    /// Returns the number of steps that were replayed from CUDA graphs.
    pub fn replayed_steps(&self) -> u64 {
        self.graphs.replays()
    }

    /// Returns the number of validation micro-batches that were replayed from CUDA graphs.
    pub fn replayed_validations(&self) -> u64 {
        self.engine.replayed_micro_batches()
    }

    /// Returns why step `step` in particular cannot be captured; `None` if it can.
    fn not_captured(&self, step: u64) -> Option<&'static str> {
        let observes = !self.records.observers.is_empty()
            || self.records.moments.has_hook()
            || self.records.phases.has_timer();
        let reasons = [
            // The driver's account of the first steps is that of a run without graphs.
            (self.records.account.reads_next(), ""),
            (observes, "operators are observed"),
            (self.records.marks.is_some(), "the parts of the step are timed"),
            (self.records.hashes.is_some(), "the tensors of steps are hashed"),
            (Calendar::new(&self.engine.setup.config).verifies(step), "the step is verified"),
        ];
        let reason = reasons.into_iter().find(|(holds, _)| *holds).map(|(_, reason)| reason);
        reason.or_else(|| self.engine.device.refuses_capture())
    }

    /// Runs a step while capturing it.
    fn record_graphs(&mut self, step: u64, length: usize) -> Result<()> {
        let device = self.engine.device.clone();
        let recorder = self.engine.recorder.clone();
        let before = device.ledger()?;
        recorder.start()?;
        let ran = self.compute(step);
        let finished = ran.and_then(|()| recorder.finish(self.numbers(step).number(0)));
        let captured = finished.inspect_err(|_| {
            recorder.abandon();
            tracing::error!(
                "the step failed while it was captured in CUDA graphs: train.graphs = \"off\" runs it without"
            );
        })?;
        self.graphs.keep(length, captured)?;
        if let (Some(before), Some(after)) = (before, device.ledger()?) {
            self.records.account.add_warm_up(after.rest - before.rest);
        }
        Ok(())
    }

    /// Replays the captured step as step `step`.
    fn replay(&mut self, step: u64, length: usize) -> Result<()> {
        self.graphs.replay(&self.engine.device, length, self.numbers(step).number(0))?;
        self.outdate_weights();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
