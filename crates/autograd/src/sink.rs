//! Destinations of weight gradients.

use std::collections::BTreeMap;

use device::{Category, DType, Request};
use tensor::Tensor;
use tensor::ops::GradientTarget;

use crate::error::{AutogradError, Result};
use crate::weight::{UseId, Weight};

/// Memory into which a weight's gradient is written, or to which it is added.
pub type Target = GradientTarget;

/// Provides memory for each weight gradient, and is notified when the gradient is complete.
pub trait GradientSink {
    /// Returns the target for the gradient of one use of `weight`: a tensor of its shape, f32 or of the
    /// weight's dtype. All uses have the same dtype.
    fn target(&mut self, use_id: UseId, weight: &Weight) -> Result<Target>;

    /// Called when the gradient of this use is complete for this backward pass.
    fn ready(&mut self, use_id: UseId) -> Result<()>;
}

/// Returns the target of a weight's gradient; `None` for a frozen weight.
///
/// # Errors
/// Errors of the sink.
pub fn target(sink: &mut dyn GradientSink, weight: &Weight) -> Result<Option<Target>> {
    weight.use_id().map(|use_id| sink.target(use_id, weight)).transpose()
}

/// Notifies `sink` that a weight's gradient is complete, unless the weight is frozen.
///
/// # Errors
/// Errors of the sink.
pub fn ready(sink: &mut dyn GradientSink, weight: &Weight) -> Result<()> {
    weight.use_id().map_or(Ok(()), |use_id| sink.ready(use_id))
}

/// Lets `compute` write or add a trained weight's gradient to its target, then notifies the sink.
///
/// # Errors
/// Errors of the sink and of `compute`.
pub(crate) fn give_gradient(
    sink: &mut dyn GradientSink,
    weight: &Weight,
    compute: impl FnOnce(&Target) -> tensor::Result<()>,
) -> Result<()> {
    if let Some(target) = target(sink, weight)? {
        compute(&target)?;
    }
    ready(sink, weight)
}

/// Allocates a target for a gradient that is discarded, similar to `taken`, for kernels that always compute
/// both.
pub(crate) fn discarded(weight: &Weight, taken: &Target) -> Result<Target> {
    let request = Request::new(Category::Gradient, "discarded_gradient");
    let tensor = Tensor::empty(weight.device(), weight.shape(), taken.tensor.dtype(), request)?;
    Ok(Target { tensor, accumulate: false })
}

type Hook =
    Box<dyn FnMut(UseId, &Tensor) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>>;

/// A simple sink: one f32 tensor per use, allocated by the first backward pass; later passes add to it.
#[derive(Default)]
pub struct Gradients {
    tensors: BTreeMap<UseId, Tensor>,
    hooks: Vec<Hook>,
}

impl Gradients {
    /// Returns the gradient of a use, if backward has reached it.
    pub fn get(&self, use_id: UseId) -> Option<&Tensor> {
        self.tensors.get(&use_id)
    }

    /// All gradients in the order of the uses.
    pub fn iter(&self) -> impl Iterator<Item = (UseId, &Tensor)> {
        self.tensors.iter().map(|(id, tensor)| (*id, tensor))
    }

    /// Calls `hook` with every gradient as backward completes it.
    pub fn on_ready(
        &mut self,
        hook: impl FnMut(UseId, &Tensor) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>
        + 'static,
    ) {
        self.hooks.push(Box::new(hook));
    }

    /// Drops all gradients.
    pub fn clear(&mut self) {
        self.tensors.clear();
    }
}

impl std::fmt::Debug for Gradients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gradients").field("tensors", &self.tensors).field("hooks", &self.hooks.len()).finish()
    }
}

impl GradientSink for Gradients {
    fn target(&mut self, use_id: UseId, like: &Weight) -> Result<Target> {
        if let Some(tensor) = self.tensors.get(&use_id) {
            return Ok(Target { tensor: tensor.clone(), accumulate: true });
        }
        let request = Request::new(Category::Gradient, "gradient");
        let tensor = Tensor::empty(like.device(), like.shape(), DType::F32, request)?;
        self.tensors.insert(use_id, tensor.clone());
        Ok(Target { tensor, accumulate: false })
    }

    fn ready(&mut self, use_id: UseId) -> Result<()> {
        if let Some(tensor) = self.tensors.get(&use_id) {
            for hook in &mut self.hooks {
                hook(use_id, tensor).map_err(AutogradError::Hook)?;
            }
        }
        Ok(())
    }
}
