//! Settings of a training step's passes, and the counts that divide its losses.

use std::rc::Rc;
use std::sync::Arc;

use autograd::LossScale;
use config::RunConfig;
use data::{MicroBatchId, Source};
use tensor::Tensor;
use tensor::ops::StepState;
use tensor::ops::routing::Balance;

use super::Worker;
use crate::build;
use crate::error::Result;
use crate::feed::numbers::Numbers;
use crate::feed::settings::PassSettings;

/// Returns the factors of the auxiliary losses that balance expert loads. `scale` is the factor of a
/// micro-batch's loss; it is not used if losses are divided by counts over the whole step.
fn balance(config: &RunConfig, scale: f32) -> Option<Balance> {
    let scale = if config.masks_padding() { 1.0 } else { scale };
    let [load, logits] = [config.train.balance_loss, config.train.router_z_loss];
    let has_losses = load > 0.0 || logits > 0.0;
    has_losses.then_some(Balance { load: load as f32 * scale, logits: logits as f32 * scale })
}

/// Returns whether losses are divided by counts over the whole step.
fn divides_losses(config: &RunConfig) -> bool {
    config.means_over_targets() || config.masks_padding()
}

/// Sets the numbers of targets and tokens over all replicas, if losses are divided by them. Does nothing on
/// Meta.
///
/// # Errors
/// Data cannot be read.
fn count_targets(
    state: &StepState,
    config: &RunConfig,
    source: &dyn Source,
    numbers: &Numbers,
) -> Result<()> {
    if state.tensor().device().is_meta() {
        return Ok(());
    }
    let sum = |is_read: bool, count: &dyn Fn(MicroBatchId) -> std::result::Result<u64, data::Error>| {
        let counts = numbers.all_ids().filter(|_| is_read).map(count);
        let sum = counts.sum::<std::result::Result<u64, _>>()?;
        Result::Ok(u32::try_from(sum).unwrap_or(u32::MAX))
    };
    let targets = sum(config.means_over_targets(), &|id| source.targets(id))?;
    let tokens = sum(config.masks_padding(), &|id| source.tokens(id))?;
    Ok(state.set_targets(targets, tokens)?)
}

impl Worker {
    /// Returns the settings of the passes of a training step.
    pub(super) fn pass_settings(&self) -> Result<PassSettings> {
        let config = &self.engine.setup.config;
        Ok(PassSettings {
            autocast: build::autocast(config),
            label_smoothing: config.train.label_smoothing as f32,
            balance: balance(config, self.loss_factor()),
            loss_scale: self.scaled_loss()?,
            target_count: self.target_count()?,
            token_count: self.token_count()?,
            offload: self.engine.offload.clone(),
        })
    }

    /// Returns the weight of a micro-batch's loss in the step's loss.
    pub(super) fn loss_factor(&self) -> f32 {
        1.0 / self.engine.setup.config.train.micro_batches() as f32
    }

    /// Returns the loss scale on the device; `None` without one.
    fn scaled_loss(&self) -> Result<Option<LossScale>> {
        let state = self.update.norm.norm.state();
        let factor = |_| -> Result<LossScale> {
            Ok(LossScale { scale: state.loss_scale_tensor()?, inverse: state.gradient_scale_tensor()? })
        };
        self.update.scale_rule.map(factor).transpose()
    }

    /// Sets the number of targets of step `step` over all ranks, if losses are divided by it.
    ///
    /// # Errors
    /// Data cannot be read.
    pub(super) fn count_targets(&self, step: u64) -> Result<()> {
        let setup = &self.engine.setup;
        match divides_losses(&setup.config) {
            true => count_targets(
                self.update.norm.norm.state(),
                &setup.config,
                &*setup.dataset.source,
                &self.numbers(step),
            ),
            false => Ok(()),
        }
    }

    /// Calls [`Worker::count_targets`] for the current step, and again in each replay.
    ///
    /// # Errors
    /// Data cannot be read.
    pub(super) fn count_targets_of_step(&self) -> Result<()> {
        let setup = &self.engine.setup;
        if !divides_losses(&setup.config) {
            return Ok(());
        }
        let norm = Rc::clone(&self.update.norm);
        let batches = self.batches.clone();
        let config = Arc::clone(&setup.config);
        let source = Arc::clone(&setup.dataset.source);
        self.engine
            .recorder
            .host(move || count_targets(norm.norm.state(), &config, &*source, &batches.numbers()?))
    }

    /// Returns the step's number of targets on the device; `None` unless the loss is a mean over them.
    fn target_count(&self) -> Result<Option<Tensor>> {
        let config = &self.engine.setup.config;
        let count = || self.update.norm.norm.state().targets_tensor();
        Ok(config.means_over_targets().then(count).transpose()?)
    }

    /// Returns the step's number of tokens on the device; `None` unless passes must know which rows are
    /// padding.
    fn token_count(&self) -> Result<Option<Tensor>> {
        let config = &self.engine.setup.config;
        let count = || self.update.norm.norm.state().tokens_tensor();
        Ok(config.masks_padding().then(count).transpose()?)
    }
}
