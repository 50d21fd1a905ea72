//! One training step: forward and backward, the reduction of gradients, clipping, the update.

use std::collections::BTreeMap;
use std::ops::RangeBounds;

use autograd::{LossScale, Mode};
use collective::Axis;
use device::nvtx::Range;
use parallel::data::{WalkKind, WeightUnits, gather_counts, gather_rows, gather_sums, gather_weights};
use parallel::pipeline::{StagePart, add_tied, share_from_last};
use telemetry::Phase;
use telemetry::step_trace::RunPart;
use tensor::Tensor;
use tensor::ops::StepState;
use tensor::ops::routing::Balance;

use super::Worker;
use crate::build;
use crate::calendar::Calendar;
use crate::error::{Result, WorkerError};
use crate::evaluation::preference::PreferenceFigures;
use crate::feed::numbers::Numbers;
use crate::feed::pairs::PairWork;
use crate::feed::{HookContext, WorkerFeed};
use crate::graphs::Stop;
use crate::observers::hooks::Moment;
use crate::setup::Setup;
use crate::stages::ModelNorm;
use config::RunConfig;
use data::MicroBatchId;

/// Results of a step, read from the device one step later.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepScalars {
    /// Mean loss over the step's micro-batches, on all ranks.
    pub loss: f32,
    /// Norm of the summed gradient before clipping.
    pub gradient_norm: f32,
    /// Factor of the loss in the step; `None` without a loss scale.
    pub loss_scale: Option<f32>,
    /// Figures of the step's pairs of answers, if the data is pairs.
    pub preference: Option<PreferenceFigures>,
}

impl StepScalars {
    /// Returns whether the update was skipped to try a smaller loss scale.
    #[must_use]
    pub fn is_skipped(&self) -> bool {
        self.loss_scale.is_some() && !self.gradient_norm.is_finite()
    }

    /// Returns whether loss or norm is not finite, and a smaller loss scale cannot be the remedy: the loss
    /// itself is not finite, or the scale is below 1 already.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        if self.is_skipped() && self.loss_scale.is_some_and(|scale| scale >= 1.0) {
            return !self.loss.is_finite();
        }
        !(self.loss.is_finite() && self.gradient_norm.is_finite())
    }
}

/// Returns the factors of the losses that balance the loads of experts, for micro-batches whose losses have
/// the factor `scale` unless they are divided by a number of the whole step.
pub(super) fn balance(config: &RunConfig, scale: f32) -> Option<Balance> {
    let scale = if config.masks_padding() { 1.0 } else { scale };
    let [load, logits] = [config.train.balance_loss, config.train.router_z_loss];
    let has_losses = load > 0.0 || logits > 0.0;
    has_losses.then_some(Balance { load: load as f32 * scale, logits: logits as f32 * scale })
}

/// Returns whether losses are divided by numbers of the whole step.
pub(super) fn divides_losses(config: &RunConfig) -> bool {
    config.means_over_targets() || config.masks_padding()
}

/// Sets the numbers of targets and tokens of a walk's micro-batches of all replicas, as far as losses are
/// divided by them; on Meta, which computes nothing, none.
///
/// # Errors
/// Data that cannot be read.
pub(super) fn set_target_count(state: &StepState, setup: &Setup, numbers: &Numbers<'_>) -> Result<()> {
    if state.tensor().device().is_meta() {
        return Ok(());
    }
    let source = &setup.dataset.source;
    let sum = |is_read: bool, count: &dyn Fn(MicroBatchId) -> std::result::Result<u64, data::Error>| {
        let counts = numbers.all_ids().filter(|_| is_read).map(count);
        let sum = counts.sum::<std::result::Result<u64, _>>()?;
        Result::Ok(u32::try_from(sum).unwrap_or(u32::MAX))
    };
    let targets = sum(setup.config.means_over_targets(), &|id| source.targets(id))?;
    let tokens = sum(setup.config.masks_padding(), &|id| source.tokens(id))?;
    Ok(state.set_targets(targets, tokens)?)
}

impl Worker {
    /// Runs step `step`, counted from 0. Nothing is read from the device: [`Worker::scalars`] does that
    /// later.
    pub fn step(&mut self, step: u64) -> Result<()> {
        let _range = Range::start(&format!("step {}", step + 1));
        self.status.step(step, || self.engine.device.statistics());
        self.begin_part(RunPart::Step, step + 1);
        self.rehearse_repeatable(step)?;
        self.phases.begin()?;
        self.hash_state(step + 1)?;
        self.moments.train(true);
        self.begin_verified(step)?;
        self.run(step)?;
        self.report(step)?;
        // Last, because a wait of compute on the same stream would wait for all weights.
        for part in 0..self.parts.len() {
            self.gather_weights(part, usize::from(part == 0)..)?;
        }
        self.graphs.end_step(&self.engine.device);
        self.moments.at(Moment::AfterUpdate, None);
        self.phases.end()?;
        self.moments.train(false);
        if Calendar::new(&self.engine.setup.config).empties_after(step) {
            self.empty_cache(step)?;
        }
        if self.account.reads_next() && self.engine.setup.config.parallel.shares_gpu() {
            // The driver's account is of all ranks on the GPU, so that none may be in its first steps.
            self.engine.groups.control().barrier()?;
        }
        self.account.after_step(&self.engine.device)
    }

    /// Runs the passes and the update of step `step`, call by call.
    pub(super) fn compute(&mut self, step: u64) -> Result<()> {
        if divides_losses(&self.engine.setup.config) {
            match self.phases.recorder() {
                Some(recorder) => recorder.pause(Stop::TargetCount, || self.set_target_count(step))?,
                None => self.set_target_count(step)?,
            }
        }
        let outcome = self.forward_backward(step, Mode::Train);
        match self.engine.setup.config.parallel.shards_gradients() {
            // Ranks communicate within passes, so that others wait for one that failed.
            true => outcome?,
            false => self.share_out_of_memory(step, outcome)?,
        }
        self.phases.enter(Phase::Reduce)?;
        self.reduce_gradients()?;
        if !self.tied.is_empty() {
            self.phases.enter(Phase::Pipeline)?;
            self.add_tied_gradients()?;
            self.phases.enter(Phase::Reduce)?;
        }
        self.compare_verified(step)?;
        match self.phases.recorder() {
            Some(recorder) => recorder.pause(Stop::Snapshot, || self.await_snapshot())?,
            None => self.await_snapshot()?,
        }
        self.reduce_statistics()?;
        self.reduce_loads()?;
        self.hash_gradients()?;
        self.phases.enter(Phase::Update)?;
        self.moments.at(Moment::BeforeUpdate, None);
        match self.phases.recorder() {
            Some(recorder) => recorder.pause(Stop::LearningRate, || self.set_learning_rate(step))?,
            None => self.set_learning_rate(step)?,
        }
        self.clip_gradients()?;
        self.update_parameters()?;
        Ok(())
    }

    /// Sets the number of targets of step `step`, over all ranks, by which losses are divided.
    ///
    /// # Errors
    /// Data that cannot be read.
    pub(super) fn set_target_count(&self, step: u64) -> Result<()> {
        let setup = &self.engine.setup;
        let numbers = Numbers::training(&setup.config, &self.engine.grid, step, &setup.left_out);
        set_target_count(self.norm.norm.state(), setup, &numbers)
    }

    /// The number of the step's targets on the device, if its loss is a mean over them.
    pub(super) fn target_count(&self) -> Result<Option<Tensor>> {
        let config = &self.engine.setup.config;
        let count = || self.norm.norm.state().targets_tensor();
        Ok(config.means_over_targets().then(count).transpose()?)
    }

    /// The number of the step's tokens on the device, if passes are to know which rows are tokens.
    pub(super) fn token_count(&self) -> Result<Option<Tensor>> {
        let config = &self.engine.setup.config;
        let count = || self.norm.norm.state().tokens_tensor();
        Ok(config.masks_padding().then(count).transpose()?)
    }

    fn set_learning_rate(&self, step: u64) -> Result<()> {
        Ok(self.norm.norm.state().set_learning_rate(self.schedule.rate(step))?)
    }

    /// If the step may be repeated, returns [`WorkerError::Repeatable`] on all ranks if one ran out of memory
    /// in its passes. The gradients so far are then without meaning, and nothing else has changed.
    ///
    /// # Errors
    /// Errors of `outcome`, and of the transport.
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

    /// Sets the gradient norm above which the next step updates nothing; 0: none.
    pub fn skip_above(&self, norm: f32) {
        self.norm.norm.skip_above(norm);
    }

    /// Marks the beginning of a part of the run in the allocator's history.
    pub(crate) fn begin_part(&self, part: RunPart, step: u64) {
        self.engine.device.set_step(u32::try_from(step).unwrap_or(u32::MAX));
        self.engine.device.with_allocator(|allocator| allocator.mark(part.name(), step));
    }

    /// Runs forward and backward of this rank's micro-batches through its stages, to train or to rehearse.
    pub(crate) fn forward_backward(&mut self, step: u64, mode: Mode) -> Result<()> {
        self.outdate_copies();
        self.begin_walk(WalkKind::Step)?;
        let setup = &self.engine.setup;
        let scale = 1.0 / setup.config.train.micro_batches() as f32;
        let numbers = Numbers::training(&setup.config, &self.engine.grid, step, &setup.left_out);
        let names = self.moments.has_hook().then(|| self.names_by_use());
        let (loss_scale, target_count) = (self.loss_factor()?, self.target_count()?);
        let token_count = self.token_count()?;
        let (data, phases) = ((&mut self.data, &*self.data_order), &mut self.phases);
        let source = (&*setup.config, &setup.dataset, &self.engine.grid);
        let mut feed = WorkerFeed::new(&self.engine.device, source, numbers, data, phases);
        feed.pixels = self.engine.pixels.as_mut();
        feed.label_smoothing = setup.config.train.label_smoothing as f32;
        feed.pairs = PairWork::of(&setup.config, self.engine.reference.as_deref());
        feed.balance = balance(&setup.config, scale);
        feed.marks = self.marks.as_mut();
        feed.loss_scale = loss_scale;
        (feed.target_count, feed.token_count) = (target_count, token_count);
        feed.offload = self.engine.offload.as_ref();
        if mode == Mode::Train {
            let mut parts = self.parts.iter();
            parts.try_for_each(|part| part.model.parameters().expert_loads().begin())?;
            (feed.observers, feed.hashes) = (&self.observers, self.hashes.as_ref());
            feed.verification = self.verification.as_ref();
        }
        feed.hook_context = names.as_ref().map(|names| HookContext { moments: &self.moments, names });
        let ran =
            self.engine.executor.train(&mut self.parts, &mut self.engine.groups, mode, scale, &mut feed);
        self.skipped += ran.map_err(|source| WorkerError::Step {
            step,
            micro_batch: numbers.in_walk(feed.at.map_or(0, |action| action.micro_batch)),
            source: Box::new(source),
        })?;
        if self.marks.is_some() {
            self.passes_ended = Some(self.engine.device.mark()?);
        }
        Ok(())
    }

    /// The factor of the loss on the device, if there is a loss scale.
    pub(super) fn loss_factor(&self) -> Result<Option<LossScale>> {
        let state = self.norm.norm.state();
        let factor = |_| -> Result<LossScale> {
            Ok(LossScale { scale: state.loss_scale_tensor()?, inverse: state.gradient_scale_tensor()? })
        };
        self.scale_rule.map(factor).transpose()
    }

    /// Lets weights be gathered in the passes to come, if they are sharded.
    pub(super) fn begin_walk(&self, kind: WalkKind) -> Result<()> {
        for units in self.parts.iter().filter_map(|part| part.weights.as_ref()) {
            units.begin(kind, &self.engine.groups.divided(Axis::Data)?.within)?;
        }
        Ok(())
    }

    /// Releases gathered weights, whose values have changed.
    pub(crate) fn outdate_weights(&self) {
        self.parts.iter().filter_map(|part| part.weights.as_ref()).for_each(WeightUnits::outdate);
    }

    /// Lets weights be cast to FP8 at their first use in the passes to come.
    pub(super) fn outdate_copies(&self) {
        self.parts.iter().for_each(|part| part.model.parameters().fp8().outdate());
    }

    /// Names of the parameters of each of the rank's stages, by use.
    pub(super) fn names_by_use(&self) -> BTreeMap<usize, Vec<String>> {
        let stages = self.engine.stages();
        let names = |model: &dyn nn::Model| {
            let parameters = model.parameters();
            let name = |used: &nn::Use| parameters.list()[used.parameter.0].name.clone();
            parameters.uses().iter().map(name).collect()
        };
        stages.zip(&self.parts).map(|(stage, part)| (stage, names(&*part.model))).collect()
    }

    /// Completes the sums of gradients over ranks.
    pub(crate) fn reduce_gradients(&mut self) -> Result<()> {
        for part in &mut self.parts {
            part.reduction.finish(&self.engine.groups.divided(part.reduction.axis())?)?;
        }
        Ok(())
    }

    /// Completes the gradients of weights that another stage uses too.
    pub(crate) fn add_tied_gradients(&mut self) -> Result<()> {
        for tied in &self.tied {
            add_tied(&self.engine.groups, *tied, &self.gradients[tied.gradient])?;
        }
        Ok(())
    }

    /// Adds the statistics of the step's micro-batches on all ranks to the running averages, in the order of
    /// their numbers.
    fn reduce_statistics(&mut self) -> Result<()> {
        let runs = self.engine.setup.config.training_assignment();
        for part in &self.parts {
            let statistics = part.model.parameters().statistics();
            if let Some(records) = statistics.records() {
                gather_rows(&self.engine.groups.along(Axis::Data)?, &records, &runs)?;
                statistics.fold()?;
            }
        }
        Ok(())
    }

    /// Adds the loads of experts on all ranks, and moves the corrections of their scores.
    fn reduce_loads(&mut self) -> Result<()> {
        let rate = self.engine.setup.config.train.correction_rate as f32;
        for part in &self.parts {
            let loads = part.model.parameters().expert_loads();
            if let Some(counts) = loads.counts() {
                gather_counts(&self.engine.groups, &counts)?;
                loads.finish(rate)?;
            }
        }
        Ok(())
    }

    /// Measures the norm of the whole model's gradient, by which the update scales gradients.
    fn clip_gradients(&mut self) -> Result<()> {
        let ModelNorm { norm, parts, counts } = &self.norm;
        let Some(parts) = parts else { return Ok(norm.measure(&self.gradients)?) };
        let sums = norm.measure_parts(parts)?;
        if !counts {
            sums.zero()?;
        }
        // Ranks of all stages meet, of which some have waited for the last passes of others.
        let has_stages = self.engine.grid.size(Axis::Pipeline) > 1;
        self.phases.enter(if has_stages { Phase::Pipeline } else { Phase::Reduce })?;
        gather_sums(&self.engine.groups.world(), sums)?;
        self.phases.enter(Phase::Update)?;
        Ok(norm.finish()?)
    }

    /// Updates the parameters, with sharded optimizer state each rank its own shards, and gathers them.
    fn update_parameters(&mut self) -> Result<()> {
        self.optimizer.update_first_slots(&self.gradients, self.norm.norm.state())?;
        // The weights that the next forward pass needs first are gathered while the rest is updated.
        self.gather_weights(0, ..1)?;
        self.phases.enter(Phase::Update)?;
        self.optimizer.update_other_slots(&self.gradients, self.norm.norm.state())?;
        self.outdate_weights();
        Ok(())
    }

    /// Starts to gather some groups of a stage's weights from the ranks that updated them.
    fn gather_weights(&mut self, part: usize, groups: impl RangeBounds<usize>) -> Result<()> {
        let StagePart { model, reduction, weights } = &self.parts[part];
        if !reduction.shards().is_sharded() || weights.is_some() {
            return Ok(());
        }
        self.phases.enter(Phase::Reduce)?;
        Ok(gather_weights(
            &self.engine.groups.divided(reduction.axis())?.within,
            reduction,
            model.parameters(),
            groups,
        )?)
    }

    /// Starts to copy loss, norm and loss scale to the host, and adapts the loss scale.
    fn report(&mut self, step: u64) -> Result<()> {
        let scalars = &self.scalars[(step % 2) as usize];
        let values = build::loss_values(&self.engine.setup.config);
        let loss = scalars.view(0, [values])?;
        for part in &self.parts {
            if let Some(sum) = part.reduction.loss() {
                loss.copy_from(&sum)?;
            }
        }
        let state = self.norm.norm.state();
        scalars.view(values, [1])?.copy_from(&state.norm_tensor()?)?;
        if let Some(rule) = &self.scale_rule {
            scalars.view(values + 1, [1])?.copy_from(&state.loss_scale_tensor()?)?;
            // After the update, whose factor is the old scale's.
            optim::adapt_loss_scale(rule, state)?;
        }
        if self.engine.grid.size(Axis::Pipeline) > 1 {
            self.phases.enter(Phase::Pipeline)?;
            share_from_last(&self.engine.groups, &loss)?;
            self.phases.enter(Phase::Update)?;
        }
        self.reading[(step % 2) as usize] = Some(self.engine.device.begin_copy_to_host(scalars.region())?);
        Ok(())
    }

    /// Returns loss, norm and loss scale of step `step`, which is the last one or the one before. Waits for
    /// that step only.
    pub fn scalars(&self, step: u64) -> Result<StepScalars> {
        let values = match &self.reading[(step % 2) as usize] {
            Some(coming) => coming.wait()?,
            None => Vec::new(),
        };
        let value = |index: usize| values.get(index).copied().unwrap_or(f32::NAN);
        let norm = build::loss_values(&self.engine.setup.config);
        let figures = values.get(1..norm).and_then(|figures| figures.try_into().ok());
        let loss_scale = self.scale_rule.map(|_| value(norm + 1));
        let preference = figures.map(PreferenceFigures::new);
        Ok(StepScalars { loss: value(0), gradient_norm: value(norm), loss_scale, preference })
    }
}
