//! The rules of parameter updates.

use device::Float;

use super::piece::Piece;
use super::{adamw, sgd};
use crate::ops::step_state::Coefficients;

/// An update rule with its constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UpdateRule {
    /// Adam with decoupled weight decay (Loshchilov and Hutter 2019), as `torch.optim.AdamW` computes it.
    AdamW {
        /// Decay of the first moment, the running mean of gradients.
        beta1: f32,
        /// Decay of the second moment, the running mean of squared gradients.
        beta2: f32,
        /// Added to the root of the second moment.
        epsilon: f32,
        /// Fraction of a weight, times the learning rate, that an update subtracts from it.
        weight_decay: f32,
    },
    /// Stochastic gradient descent, as `torch.optim.SGD` computes it.
    Sgd {
        /// Fraction of the velocity that an update keeps; 0 needs no velocity.
        momentum: f32,
        /// Fraction of a weight that is added to its gradient.
        weight_decay: f32,
    },
}

/// A state tensor that a rule keeps for every parameter, with as many elements; zeros before the first
/// update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateTensor {
    /// The tensor's stable name, such as `adamw.first`.
    pub name: &'static str,
}

impl UpdateRule {
    /// The state tensors of the rule for every parameter.
    pub fn states(&self) -> &'static [StateTensor] {
        const fn named(name: &'static str) -> StateTensor {
            StateTensor { name }
        }
        match self {
            UpdateRule::AdamW { .. } => const { &[named("adamw.first"), named("adamw.second")] },
            UpdateRule::Sgd { momentum: 0.0, .. } => &[],
            UpdateRule::Sgd { .. } => const { &[named("sgd.velocity")] },
        }
    }

    /// The operator's name in errors.
    pub(super) fn operator(&self) -> &'static str {
        match self {
            UpdateRule::AdamW { .. } => "adamw.step",
            UpdateRule::Sgd { .. } => "sgd.step",
        }
    }

    /// The kernel that begins an update, and its constants in order.
    pub(super) fn begin_kernel(&self) -> (&'static str, Vec<f32>) {
        match *self {
            UpdateRule::AdamW { beta1, beta2, epsilon, weight_decay } => {
                ("begin_adamw", vec![beta1, beta2, epsilon, weight_decay])
            }
            UpdateRule::Sgd { momentum, weight_decay } => ("begin_sgd", vec![momentum, weight_decay]),
        }
    }

    /// The kernel that updates parameters, instantiated for the gradients' types.
    /// With `rounded`, the one for states in bf16.
    pub(super) fn update_kernel(&self, rounded: bool) -> &'static str {
        match (self, rounded) {
            (UpdateRule::AdamW { .. }, false) => "adamw",
            (UpdateRule::AdamW { .. }, true) => "adamw_rounded",
            (UpdateRule::Sgd { momentum: 0.0, .. }, _) => "sgd",
            (UpdateRule::Sgd { .. }, false) => "sgd_momentum",
            (UpdateRule::Sgd { .. }, true) => "sgd_momentum_rounded",
        }
    }

    /// Coefficients of update `count`, from 1, on the CPU.
    pub(super) fn coefficients(&self, learning_rate: f32, count: u32, factor: f32) -> Coefficients {
        match *self {
            UpdateRule::AdamW { beta1, beta2, epsilon, weight_decay } => {
                let constants = adamw::Constants { beta1, beta2, epsilon, weight_decay };
                adamw::coefficients(constants, learning_rate, count, factor)
            }
            UpdateRule::Sgd { momentum, weight_decay } => {
                sgd::coefficients(momentum, weight_decay, learning_rate, count, factor)
            }
        }
    }

    /// Updates some elements on the CPU.
    #[inline(always)]
    pub(super) fn update<G: Float>(&self, piece: Piece<'_, G>, coefficients: &Coefficients) {
        match self {
            UpdateRule::AdamW { .. } => adamw::update(piece, coefficients),
            UpdateRule::Sgd { momentum: 0.0, .. } => sgd::update(piece, coefficients),
            UpdateRule::Sgd { .. } => sgd::update_with_momentum(piece, coefficients),
        }
    }
}
