//! The results of a step, loss, gradient norm and loss scale, which are read from the device one step later.

use config::RunConfig;
use device::{Category, DType, Device, HostCopy, Request};
use tensor::Tensor;

use crate::build;
use crate::error::Result;
use crate::validation::preference::PreferenceFigures;

/// Results of a step, read from the device one step later.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepScalars {
    /// Mean loss over the step's micro-batches, on all ranks.
    pub loss: f32,
    /// Norm of the summed gradient before clipping.
    pub gradient_norm: f32,
    /// The loss scale in the step; `None` without one.
    pub loss_scale: Option<f32>,
    /// Preference figures of the step; `None` for other data.
    pub preference: Option<PreferenceFigures>,
}

impl StepScalars {
    /// Returns whether the update was skipped to try a smaller loss scale.
    #[must_use]
    pub fn is_skipped(&self) -> bool {
        self.loss_scale.is_some() && !self.gradient_norm.is_finite()
    }

    /// Returns whether loss or gradient norm is not finite and a smaller loss scale cannot help, because the
    /// loss itself is not finite or the scale is already below 1.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        if self.is_skipped() && self.loss_scale.is_some_and(|scale| scale >= 1.0) {
            return !self.loss.is_finite();
        }
        !(self.loss.is_finite() && self.gradient_norm.is_finite())
    }
}

/// The results of the last two steps, indexed by the parity of the step.
pub(crate) struct StepResults {
    /// Loss, gradient norm, loss scale, and the norms of groups.
    pub(crate) scalars: [Tensor; 2],
    /// Copies of `scalars` to the host in progress.
    pub(crate) reading: [Option<HostCopy<f32>>; 2],
}

impl StepResults {
    /// Allocates the results of a run that reports the gradient norms of `groups` groups.
    pub(crate) fn new(device: &Device, config: &RunConfig, groups: usize) -> Result<Self> {
        // The values of the loss, the norm, and with a loss scale also that.
        let has_scale = build::scale_rule(config).is_some();
        let count = build::loss_values(config) + 1 + usize::from(has_scale) + groups;
        let request = || Request::new(Category::Other, "step_scalars");
        let zeros = || Tensor::zeros(device, [count], DType::F32, request());
        Ok(StepResults { scalars: [zeros()?, zeros()?], reading: [None, None] })
    }
}
