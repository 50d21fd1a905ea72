//! Settings that the passes of a walk share.

use std::sync::Arc;

use autograd::precision::Autocast;
use autograd::{LossScale, Offload, Pass};
use tensor::Tensor;
use tensor::ops::routing::Balance;

/// Settings that the passes of a walk share.
#[derive(Clone, Debug, Default)]
pub(crate) struct PassSettings {
    pub(crate) autocast: Option<Arc<Autocast>>,
    pub(crate) label_smoothing: f32,
    /// Factors of the losses that balance loads of experts, if there are any.
    pub(crate) balance: Option<Balance>,
    /// The factor of the loss, if there is one.
    pub(crate) loss_scale: Option<LossScale>,
    /// The number of targets of the step, if its loss is a mean over them.
    pub(crate) target_count: Option<Tensor>,
    /// The number of tokens of the step, if passes are to know which rows are tokens.
    pub(crate) token_count: Option<Tensor>,
    /// The host memory of activations, if they are offloaded.
    pub(crate) offload: Option<Offload>,
}

impl PassSettings {
    /// Returns `pass` with these settings.
    pub(crate) fn of_pass(&self, pass: Pass) -> Pass {
        let PassSettings { autocast, label_smoothing, balance, loss_scale, target_count, offload, .. } =
            self.clone();
        Pass { autocast, label_smoothing, balance, loss_scale, target_count, offload, ..pass }
    }
}
