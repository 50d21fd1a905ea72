//! The dynamic loss scale of half-precision training, adapted as PyTorch's `GradScaler` does.
//!
//! The loss's gradient is multiplied by the scale, so that small gradients are not rounded to 0, and an
//! update divides by it. Both are in [`StepState`], so the scale changes on the device.

use device::{Backend, Family, Function};

use super::StepState;
use super::kernels::family;
use crate::Result;

pub(super) static FAMILY: Family = family!("loss_scale", headers: ["step_state.cuh"]);

/// Growth and backoff of the loss scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScaleRule {
    /// Factor of the scale after `interval` updates in a row were not skipped; above 1.
    pub growth: f32,
    /// Factor of the scale after an update was skipped because the norm is not finite; below 1.
    pub backoff: f32,
    /// Number of consecutive updates after which the scale grows.
    pub interval: u32,
}

/// Grows or shrinks the loss scale in `state`, depending on whether the norm of the last update is finite.
pub fn adapt(rule: &ScaleRule, state: &StepState) -> Result<()> {
    let device = state.tensor().device();
    match device.backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            let mut words = state.write()?;
            let (scale, good_steps) = rule.next(words.loss_scale(), words.good_steps(), words.is_finite());
            words.set_loss_scale(scale, good_steps);
            Ok(())
        }
        Backend::Cuda => {
            let launch = device.kernel(Function::new(&FAMILY, "adapt")).write(state.region());
            let launch = launch.f32(rule.growth).f32(rule.backoff).u32(rule.interval);
            Ok(launch.launch([1, 1, 1], 1)?)
        }
    }
}

impl ScaleRule {
    /// Returns the scale after an update, and the number of consecutive updates that were not skipped.
    fn next(&self, scale: f32, good_steps: u32, is_finite: bool) -> (f32, u32) {
        if !is_finite {
            return (scale * self.backoff, 0);
        }
        if good_steps + 1 < self.interval {
            return (scale, good_steps + 1);
        }
        let grown = scale * self.growth;
        (if grown.is_finite() { grown } else { scale }, 0)
    }
}
