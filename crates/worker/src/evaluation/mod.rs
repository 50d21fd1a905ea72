//! Evaluated micro-batches, which are captured in CUDA graphs and replayed: the forward pass and the loss.
//! Between the graphs, inputs and targets are copied to the device and results to the host.

pub(crate) mod preference;
pub(crate) mod results;

use std::ops::Range;
use std::rc::Rc;

use collective::GridGroups;
use config::{Graphs, RunConfig};
use device::Device;
use nn::Model;
use parallel::pipeline::{Executor, Skipped};

use crate::error::Result;
use crate::feed::WorkerFeed;
use crate::feed::results::OnDevice;
use crate::graphs::refusals::never_captured_evaluation;
use crate::graphs::{Course, Recorder, StepGraphs, Stop};

/// The micro-batches that a rank evaluates.
#[derive(Debug)]
pub(crate) struct Evaluation {
    graphs: StepGraphs,
    /// The results of the captured micro-batch.
    results: Option<OnDevice>,
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
        Ok(Evaluation { graphs, results: None })
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
            // The first one makes what others use again, as rounded weights.
            let reason = if micro_batch == 0 { Some("") } else { device.refuses_capture() };
            match self.graphs.next(device, reason) {
                Course::Plain => skipped += passes.one(micro_batch)?,
                Course::Recorded => skipped += self.record(device, &mut passes, micro_batch)?,
                Course::Replayed => skipped += self.replay(device, &mut passes, micro_batch)?,
            }
            self.graphs.end_step(device);
        }
        Ok(skipped)
    }

    /// Evaluates a micro-batch while it is captured, and if that fails again.
    fn record(
        &mut self,
        device: &Device,
        passes: &mut Passes<'_, '_>,
        micro_batch: usize,
    ) -> Result<Skipped> {
        let recorder = Rc::new(Recorder::start(device)?);
        passes.feed.phases.set_recorder(Some(Rc::clone(&recorder)));
        let ran = passes.one(micro_batch);
        passes.feed.phases.set_recorder(None);
        match ran {
            Ok(skipped) => {
                let finished = recorder.finish(passes.feed.numbers.number(micro_batch));
                self.graphs.keep(finished.inspect_err(|_| recorder.abandon())?)?;
                self.results = passes.feed.results.last.take();
                Ok(skipped)
            }
            Err(error) => {
                recorder.abandon();
                self.graphs.keep(Err(format!("a call failed while it was captured: {error}")))?;
                passes.one(micro_batch)
            }
        }
    }

    fn replay(
        &mut self,
        device: &Device,
        passes: &mut Passes<'_, '_>,
        micro_batch: usize,
    ) -> Result<Skipped> {
        let Some(mut captured) = self.graphs.take() else { return passes.one(micro_batch) };
        let feed = &mut *passes.feed;
        let number = feed.numbers.number(micro_batch);
        captured.replay(device, (number, true), |stop, written| match (stop, &self.results) {
            (Stop::Results, Some(results)) => feed.results.loss_again(device, results),
            (stop, _) => feed.stop_again(stop.of(micro_batch), written),
        })?;
        self.graphs.restore(captured);
        Ok(Skipped::default())
    }
}
