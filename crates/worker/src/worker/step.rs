//! One training step: forward and backward, reduction of gradients, clipping, update.

use std::collections::BTreeMap;

use autograd::Mode;
use collective::Axis;
use device::nvtx::Range;
use parallel::data::{WeightUnits, WorkKind};

use super::Worker;
use crate::error::{Result, WorkerError};
use crate::feed::WorkerFeed;
use crate::feed::batches::MicroBatches;
use crate::feed::observation::Observation;
use crate::feed::pairs::PairWork;
use crate::feed::results::{Arriving, Results};

impl Worker {
    /// Runs step `step`, counted from 0. Nothing is read from the device: [`Worker::scalars`] does that
    /// later.
    pub fn step(&mut self, step: u64) -> Result<()> {
        let _range = Range::start(&format!("step {}", step + 1));
        self.begin_step(step)?;
        self.run(step)?;
        self.report(step)?;
        // Last, because a wait of compute on the same stream would wait for all weights.
        self.gather_other_weights()?;
        self.end_step(step)
    }

    /// Runs the passes and the update of step `step`, call by call.
    pub(super) fn compute(&mut self, step: u64) -> Result<()> {
        self.count_targets_of_step()?;
        self.gather_for(WorkKind::Step)?;
        let outcome = self.forward_backward(step, Mode::Train);
        self.agree_on_memory(step, outcome)?;
        self.reduce(step)?;
        self.begin_update()?;
        self.clip_gradients()?;
        self.update_parameters()
    }

    /// Runs forward and backward of this rank's micro-batches through its stages, to train or to rehearse.
    pub(crate) fn forward_backward(&mut self, step: u64, mode: Mode) -> Result<()> {
        if mode == Mode::Train {
            let mut parts = self.stages.parts.iter();
            parts.try_for_each(|part| part.model.parameters().expert_loads().begin())?;
        }
        let mut feed = self.training_feed(&self.batches, self.observation(mode))?;
        let factor = self.loss_factor();
        let engine = &mut self.engine;
        let ran = engine.executor.train(&mut self.stages.parts, &mut engine.groups, mode, factor, &mut feed);
        let index = feed.observation.action().map_or(0, |action| action.micro_batch);
        let numbers = self.numbers(step);
        self.records.skipped += ran.map_err(|source| WorkerError::Step {
            step,
            micro_batch: numbers.number_in_pass(index),
            source: Box::new(source),
        })?;
        if self.records.marks.is_some() {
            self.records.passes_ended = Some(self.engine.device.mark()?);
        }
        Ok(())
    }

    /// Returns the feed for training passes on `batches`.
    pub(super) fn training_feed(
        &self,
        batches: &MicroBatches,
        observation: Observation,
    ) -> Result<WorkerFeed<'static>> {
        let engine = &self.engine;
        let pairs = PairWork::from_config(&engine.setup.config, engine.reference.as_ref());
        Ok(WorkerFeed {
            arrays: engine.arrays(batches, pairs),
            settings: self.pass_settings()?,
            observation,
            results: Results::new(&engine.device, &engine.recorder, &Arriving::default(), None),
        })
    }

    /// If steps may be repeated, returns [`WorkerError::Repeatable`] on all ranks when any rank ran out of
    /// memory in its passes. The gradients are then undefined, and nothing else has changed.
    ///
    /// # Errors
    /// Errors of `outcome`, or the transport fails.
    pub(super) fn agree_on_memory(&mut self, step: u64, outcome: Result<()>) -> Result<()> {
        // With sharded gradients, ranks communicate within passes, so that others wait for one that failed.
        match self.engine.setup.config.parallel.shards_gradients() {
            true => outcome,
            false => self.share_out_of_memory(step, outcome),
        }
    }

    /// Shares `outcome` with all ranks, if steps may be repeated.
    pub(super) fn share_out_of_memory(&mut self, step: u64, outcome: Result<()>) -> Result<()> {
        if !self.engine.setup.config.train.halves_micro_batches() {
            return outcome;
        }
        let own = match outcome {
            Err(error) if error.is_out_of_memory() => error.to_string(),
            Err(error) => return Err(error),
            Ok(()) => String::new(),
        };
        let all = self.engine.groups.control().all_gather(own.as_bytes())?;
        let Some(rank) = all.iter().position(|message| !message.is_empty()) else { return Ok(()) };
        self.engine.device.empty_cache()?;
        let reason = String::from_utf8_lossy(&all[rank]).into_owned();
        Err(WorkerError::Repeatable { step, rank, reason })
    }

    /// Makes the coming passes gather weights, and cast them to FP8, at their first use.
    pub(super) fn gather_for(&self, kind: WorkKind) -> Result<()> {
        self.stages.parts.iter().for_each(|part| part.model.parameters().fp8().outdate());
        for units in self.stages.parts.iter().filter_map(|part| part.weights.as_ref()) {
            units.begin(kind, &self.engine.groups.divided(Axis::Data)?.within)?;
        }
        Ok(())
    }

    /// Releases gathered weights, because their values have changed.
    pub(crate) fn outdate_weights(&self) {
        self.stages.parts.iter().filter_map(|part| part.weights.as_ref()).for_each(WeightUnits::outdate);
    }

    /// Returns the names of the parameters in each of this rank's stages, by use.
    pub(super) fn names_by_use(&self) -> BTreeMap<usize, Vec<String>> {
        let stages = self.engine.stages();
        let names = |model: &dyn nn::Model| {
            let parameters = model.parameters();
            let name = |used: &nn::Use| parameters.list()[used.parameter.0].name.clone();
            parameters.uses().iter().map(name).collect()
        };
        stages.zip(&self.stages.parts).map(|(stage, part)| (stage, names(&*part.model))).collect()
    }
}
