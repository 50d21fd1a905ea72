//! Evaluates micro-batches, as forward pass and loss, and captures them in CUDA graphs. Between graphs,
//! inputs and targets are copied to the device, and results to the host.

pub(crate) mod preference;
pub mod results;

use std::ops::Range;

use collective::GridGroups;
use config::{Graphs, RunConfig};
use device::Device;
use nn::Model;
use parallel::pipeline::{Executor, Skipped};

use crate::error::Result;
use crate::feed::WorkerFeed;
use crate::feed::batches::MicroBatches;
use crate::feed::results::Arriving;
use crate::graphs::refusals::never_captured_evaluation;
use crate::graphs::{StepGraphs, StepMode};

/// Captured evaluation of a rank's micro-batches.
pub(crate) struct Evaluation {
    graphs: StepGraphs,
    pub(crate) batches: MicroBatches,
    pub(crate) arriving: Arriving,
    /// Index of the captured micro-batch.
    captured: usize,
}

/// Everything needed to run an evaluation's passes.
pub(crate) struct Passes<'a, 'f> {
    pub(crate) models: Vec<&'a dyn Model>,
    pub(crate) executor: &'a Executor,
    pub(crate) groups: &'a mut GridGroups,
    /// Number of this rank's micro-batches.
    pub(crate) count: usize,
    pub(crate) feed: &'a mut WorkerFeed<'f>,
}

impl Passes<'_, '_> {
    /// Evaluates a range of micro-batches without a CUDA graph.
    fn make(&mut self, micro_batches: Range<usize>) -> Result<Skipped> {
        self.executor.validate(self.models.clone(), self.groups, micro_batches, self.feed)
    }

    /// Evaluates one micro-batch without a CUDA graph.
    fn one(&mut self, micro_batch: usize) -> Result<Skipped> {
        self.make(micro_batch..micro_batch + 1)
    }
}

impl Evaluation {
    /// Returns the state before a rank's first evaluation on `device`.
    ///
    /// # Errors
    /// Never fails, because evaluation does not require graphs.
    pub(crate) fn new(device: &Device, config: &RunConfig) -> Result<Self> {
        // Graphs that a configuration demands are those of training steps.
        let choice = if config.train.graphs == Graphs::Off { Graphs::Off } else { Graphs::Auto };
        let never = never_captured_evaluation(config);
        let graphs = StepGraphs::new("evaluated micro-batches", choice, device, never)?;
        let batches = MicroBatches::default();
        let arriving = Arriving::default();
        Ok(Evaluation { graphs, batches, arriving, captured: 0 })
    }

    /// Captures micro-batches on Meta too, where their graphs are empty.
    #[cfg(test)]
    pub(crate) fn capture_on_meta(&mut self) {
        self.graphs.capture_on_meta();
    }

    /// Returns the number of micro-batches replayed from CUDA graphs.
    pub(crate) fn replays(&self) -> u64 {
        self.graphs.replays()
    }

    /// Evaluates all micro-batches.
    ///
    /// # Errors
    /// A pass fails, or data cannot be read.
    pub(crate) fn run(&mut self, device: &Device, mut passes: Passes<'_, '_>) -> Result<Skipped> {
        if !self.graphs.is_possible() {
            return passes.make(0..passes.count);
        }
        let mut skipped = Skipped::default();
        for micro_batch in 0..passes.count {
            self.batches.replace(micro_batch, micro_batch);
            // The first one makes what others use again, as rounded weights.
            let reason = if micro_batch == 0 { Some("") } else { device.refuses_capture() };
            match self.graphs.next(device, 0, reason) {
                StepMode::Plain => skipped += passes.one(micro_batch)?,
                StepMode::Recorded => skipped += self.record(&mut passes, micro_batch)?,
                StepMode::Replayed => self.replay(device, &mut passes, micro_batch)?,
            }
            self.graphs.end_step(device);
        }
        Ok(skipped)
    }

    /// Evaluates a micro-batch while capturing it. If capturing fails, evaluates it again.
    fn record(&mut self, passes: &mut Passes<'_, '_>, micro_batch: usize) -> Result<Skipped> {
        let recorder = passes.feed.arrays.recorder.clone();
        recorder.start()?;
        match passes.one(micro_batch) {
            Ok(skipped) => {
                self.graphs.keep(0, recorder.finish(self.batches.numbers()?.number(micro_batch))?)?;
                self.captured = micro_batch;
                Ok(skipped)
            }
            Err(error) => {
                recorder.abandon();
                self.graphs.keep(0, Err(format!("a call failed while it was captured: {error}")))?;
                passes.one(micro_batch)
            }
        }
    }

    /// Evaluates a micro-batch by replaying the graphs of the captured one.
    fn replay(&mut self, device: &Device, passes: &mut Passes<'_, '_>, micro_batch: usize) -> Result<()> {
        self.batches.replace(self.captured, micro_batch);
        self.graphs.replay(device, 0, self.batches.numbers()?.number(micro_batch))?;
        passes.feed.results.report();
        Ok(())
    }
}
