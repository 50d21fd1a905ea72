//! The results of a step: loss, norm and loss scale, read from the device one step later.

use config::RunConfig;
use device::{Category, DType, Device, HostCopy, Request};
use parallel::pipeline::share_from_last;
use telemetry::Phase;
use tensor::Tensor;

use super::Worker;
use crate::build;
use crate::error::Result;
use crate::evaluation::preference::PreferenceFigures;
use collective::Axis;

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

/// The results of the last two steps, by parity of the step.
pub(super) struct StepResults {
    /// Loss, gradient norm and loss scale.
    scalars: [Tensor; 2],
    /// Copies of `scalars` to the host that are in flight.
    reading: [Option<HostCopy<f32>>; 2],
}

impl StepResults {
    /// Allocates the results.
    ///
    /// # Errors
    /// Out of memory.
    pub(super) fn new(device: &Device, config: &RunConfig) -> Result<Self> {
        // The values of the loss, the norm, and with a loss scale also that.
        let count = build::loss_values(config) + 1 + usize::from(build::scale_rule(config).is_some());
        let request = || Request::new(Category::Other, "step_scalars");
        let zeros = || Tensor::zeros(device, [count], DType::F32, request());
        Ok(StepResults { scalars: [zeros()?, zeros()?], reading: [None, None] })
    }
}

impl Worker {
    /// Starts to copy loss, norm and loss scale to the host, and adapts the loss scale.
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
        if self.engine.grid.size(Axis::Pipeline) > 1 {
            self.records.phases.enter(Phase::Pipeline)?;
            share_from_last(&self.engine.groups, &loss)?;
            self.records.phases.enter(Phase::Update)?;
        }
        self.results.reading[(step % 2) as usize] =
            Some(self.engine.device.begin_copy_to_host(scalars.region())?);
        Ok(())
    }

    /// Returns loss, norm and loss scale of step `step`, which is the last one or the one before. Waits for
    /// that step only.
    pub fn scalars(&self, step: u64) -> Result<StepScalars> {
        let values = match &self.results.reading[(step % 2) as usize] {
            Some(coming) => coming.wait()?,
            None => Vec::new(),
        };
        let value = |index: usize| values.get(index).copied().unwrap_or(f32::NAN);
        let norm = build::loss_values(&self.engine.setup.config);
        let figures = values.get(1..norm).and_then(|figures| figures.try_into().ok());
        let loss_scale = self.update.scale_rule.map(|_| value(norm + 1));
        let preference = figures.map(PreferenceFigures::new);
        Ok(StepScalars { loss: value(0), gradient_norm: value(norm), loss_scale, preference })
    }
}
