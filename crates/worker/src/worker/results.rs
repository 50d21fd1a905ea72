//! Copies the results of a step to the host.

use collective::Axis;
use parallel::pipeline::share_from_last;
use telemetry::Phase;

use super::Worker;
use crate::build;
use crate::error::Result;
use crate::step_results::StepScalars;
use crate::validation::preference::PreferenceFigures;

impl Worker {
    /// Starts copying loss, norm and loss scale to the host, and adapts the loss scale.
    pub(super) fn report(&mut self, step: u64) -> Result<()> {
        let scalars = &self.results.scalars[(step % 2) as usize];
        let values = build::loss_values(&self.engine.setup.config);
        let loss = scalars.view(0, [values])?;
        for part in &self.stages.parts {
            if let Some(sum) = part.reduction.loss() {
                loss.copy_from(&sum)?;
            }
        }
        let state = self.update.norm.norm.state();
        scalars.view(values, [1])?.copy_from(&state.norm_tensor()?)?;
        if let Some(rule) = &self.update.scale_rule {
            scalars.view(values + 1, [1])?.copy_from(&state.loss_scale_tensor()?)?;
            // After the update, whose factor is the old scale's.
            optim::adapt_loss_scale(rule, state)?;
        }
        if let Some(norms) = self.update.norm.norm.group_norms() {
            scalars.view(self.first_group_norm(), norms.shape())?.copy_from(norms)?;
        }
        if self.engine.grid.size(Axis::Pipeline) > 1 {
            self.records.phases.enter(Phase::Pipeline)?;
            share_from_last(&self.engine.groups, &loss)?;
            self.records.phases.enter(Phase::Update)?;
        }
        self.results.reading[(step % 2) as usize] =
            Some(self.engine.device.begin_copy_to_host(scalars.region())?);
        Ok(())
    }

    /// Returns the index of the first group's norm among the results of a step.
    fn first_group_norm(&self) -> usize {
        let values = build::loss_values(&self.engine.setup.config);
        values + 1 + usize::from(self.update.scale_rule.is_some())
    }

    /// Returns the gradient norms of groups of parameters in step `step`, by name, with the conditions of
    /// [`Worker::scalars`]; empty if the run reports none.
    pub fn group_norms(&self, step: u64) -> Result<Vec<(String, f32)>> {
        let names = &self.update.norm.groups;
        let values = match &self.results.reading[(step % 2) as usize] {
            Some(coming) if !names.is_empty() => coming.wait()?,
            _ => Vec::new(),
        };
        let norms = values.into_iter().skip(self.first_group_norm());
        Ok(names.iter().cloned().zip(norms).collect())
    }

    /// Returns the losses of the modules that predict later tokens in step `step`, with the conditions of
    /// [`Worker::scalars`]; empty without modules.
    pub fn later_losses(&self, step: u64) -> Result<Vec<f32>> {
        let modules = self.engine.setup.config.train.prediction_modules();
        let values = match &self.results.reading[(step % 2) as usize] {
            Some(coming) if modules > 0 => coming.wait()?,
            _ => Vec::new(),
        };
        Ok(values.into_iter().skip(1).take(modules).collect())
    }

    /// Returns loss, norm and loss scale of step `step`, which must be one of the last two. Waits only for
    /// that step.
    pub fn scalars(&self, step: u64) -> Result<StepScalars> {
        let values = match &self.results.reading[(step % 2) as usize] {
            Some(coming) => coming.wait()?,
            None => Vec::new(),
        };
        let value = |index: usize| values.get(index).copied().unwrap_or(f32::NAN);
        let norm = build::loss_values(&self.engine.setup.config);
        let is_pairs = build::objective(&self.engine.setup.config).is_some();
        let figures = values.get(1..norm).filter(|_| is_pairs);
        let figures = figures.and_then(|figures| figures.try_into().ok());
        let loss_scale = self.update.scale_rule.map(|_| value(norm + 1));
        let preference = figures.map(PreferenceFigures::new);
        Ok(StepScalars { loss: value(0), gradient_norm: value(norm), loss_scale, preference })
    }
}
