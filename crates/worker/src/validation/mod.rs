//! Evaluated micro-batches, which are captured in CUDA graphs and replayed: the forward pass and the loss.
//! Between the graphs, inputs and targets are copied to the device and results to the host.

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
use crate::graphs::{Course, StepGraphs};

/// The micro-batches that a rank evaluates.
pub(crate) struct Evaluation {
    graphs: StepGraphs,
    pub(crate) batches: MicroBatches,
    pub(crate) arriving: Arriving,
    /// The index of the captured micro-batch in its walk.
    captured: usize,
}

/// The passes of an evaluation.
pub(crate) struct Passes<'a, 'f> {
    pub(crate) models: Vec<&'a dyn Model>,
    pub(crate) executor: &'a Executor,
    pub(crate) groups: &'a mut GridGroups,
    /// Micro-batches of this rank.
    pub(crate) count: usize,
    pub(crate) feed: &'a mut WorkerFeed<'f>,
}

impl Passes<'_, '_> {
    /// Evaluates some of the micro-batches.
    fn make(&mut self, micro_batches: Range<usize>) -> Result<Skipped> {
        self.executor.validate(self.models.clone(), self.groups, micro_batches, self.feed)
    }

    /// Evaluates one micro-batch.
    fn one(&mut self, micro_batch: usize) -> Result<Skipped> {
        self.make(micro_batch..micro_batch + 1)
    }
}

impl Evaluation {
    /// Returns the state before the first evaluation of a rank on `device`.
    ///
    /// # Errors
    /// None: nothing is demanded.
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

    /// Number of micro-batches that were replayed.
    pub(crate) fn replays(&self) -> u64 {
        self.graphs.replays()
    }

    /// Evaluates all micro-batches of a walk.
    ///
    /// # Errors
    /// Errors of passes and of data.
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
                Course::Plain => skipped += passes.one(micro_batch)?,
                Course::Recorded => skipped += self.record(&mut passes, micro_batch)?,
                Course::Replayed => self.replay(device, &mut passes, micro_batch)?,
            }
            self.graphs.end_step(device);
        }
        Ok(skipped)
    }

    /// Evaluates a micro-batch while it is captured, and if that fails again.
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

    /// Evaluates a micro-batch from the graphs of the captured one.
    fn replay(&mut self, device: &Device, passes: &mut Passes<'_, '_>, micro_batch: usize) -> Result<()> {
        self.batches.replace(self.captured, micro_batch);
        self.graphs.replay(device, 0, self.batches.numbers()?.number(micro_batch))?;
        passes.feed.results.report();
        Ok(())
    }
}
