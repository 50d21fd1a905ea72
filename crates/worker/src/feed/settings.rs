//! Settings shared by all passes over a schedule.

use std::sync::Arc;

use autograd::precision::Autocast;
use autograd::{LossScale, Offload, Pass};
use tensor::Tensor;
use tensor::ops::routing::Balance;

/// Settings shared by all passes over a schedule.
#[derive(Clone, Debug, Default)]
pub(crate) struct PassSettings {
    pub(crate) autocast: Option<Arc<Autocast>>,
    pub(crate) label_smoothing: f32,
    /// Factors of the auxiliary losses that balance expert loads; `None` without any.
    pub(crate) balance: Option<Balance>,
    /// The loss scale; `None` without one.
    pub(crate) loss_scale: Option<LossScale>,
    /// The step's number of targets; `None` unless the loss is a mean over them.
    pub(crate) target_count: Option<Tensor>,
    /// The step's number of tokens; `None` unless passes must know which rows are padding.
    pub(crate) token_count: Option<Tensor>,
    /// Host memory for offloaded activations; `None` if they are not offloaded.
    pub(crate) offload: Option<Offload>,
}

impl PassSettings {
    /// Returns `pass` with these settings applied.
    pub(crate) fn of_pass(&self, pass: Pass) -> Pass {
        let PassSettings { autocast, label_smoothing, balance, loss_scale, target_count, offload, .. } =
            self.clone();
        Pass { autocast, label_smoothing, balance, loss_scale, target_count, offload, ..pass }
    }
}
