//! The rules of parameter updates.

use device::Float;

use super::item::Storage;
use super::piece::UpdateOperands;
use super::{adamw, lion, muon, sgd};
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
        /// Number added to the square root of the second moment.
        epsilon: f32,
        /// An update subtracts this times the learning rate times the weight.
        weight_decay: f32,
    },
    /// Lion (Chen et al. 2023): the sign of a running mean of gradients, and decoupled weight decay.
    Lion {
        /// Weight of the running mean in an update's direction; the gradient has the weight 1 − `beta1`.
        beta1: f32,
        /// Decay of the running mean.
        beta2: f32,
        /// An update subtracts this times the learning rate times the weight.
        weight_decay: f32,
    },
    /// Stochastic gradient descent, as `torch.optim.SGD` computes it.
    Sgd {
        /// Fraction of the velocity that an update keeps; 0: no velocity is stored.
        momentum: f32,
        /// Factor of the weight that is added to its gradient.
        weight_decay: f32,
    },
    /// First half of Muon (Jordan et al. 2024): the running mean of gradients and Nesterov's direction, which
    /// is written to the item's weight, a bf16 tensor for it.
    MuonMomentum {
        /// Fraction of the mean that an update keeps.
        momentum: f32,
    },
    /// Second half of Muon: steps in the direction that is the item's gradient, with decoupled weight decay.
    MuonStep {
        /// An update subtracts this times the learning rate times the weight.
        weight_decay: f32,
    },
}

/// A state tensor that a rule keeps for every parameter, with as many elements as it; zeros before the first
/// update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateTensor {
    /// The tensor's stable name, such as `adamw.first`.
    pub name: &'static str,
    /// Whether elements may be negative.
    pub is_signed: bool,
}

impl UpdateRule {
    /// Returns the state tensors that the rule keeps for every parameter.
    pub fn states(&self) -> &'static [StateTensor] {
        const ADAMW: &[StateTensor] = &[
            StateTensor { name: "adamw.first", is_signed: true },
            StateTensor { name: "adamw.second", is_signed: false },
        ];
        const LION: &[StateTensor] = &[StateTensor { name: "lion.momentum", is_signed: true }];
        const MOMENTUM: &[StateTensor] = &[StateTensor { name: "sgd.velocity", is_signed: true }];
        const MUON: &[StateTensor] = &[StateTensor { name: "muon.momentum", is_signed: true }];
        match self {
            UpdateRule::AdamW { .. } => ADAMW,
            UpdateRule::Lion { .. } => LION,
            UpdateRule::Sgd { momentum: 0.0, .. } => &[],
            UpdateRule::Sgd { .. } => MOMENTUM,
            UpdateRule::MuonMomentum { .. } => MUON,
            UpdateRule::MuonStep { .. } => &[],
        }
    }

    /// Returns whether the rule writes a direction instead of updating weights.
    pub(super) fn writes_direction(&self) -> bool {
        matches!(self, UpdateRule::MuonMomentum { .. })
    }

    pub(super) fn operator(&self) -> &'static str {
        match self {
            UpdateRule::AdamW { .. } => "adamw.step",
            UpdateRule::Lion { .. } => "lion.step",
            UpdateRule::Sgd { .. } => "sgd.step",
            UpdateRule::MuonMomentum { .. } => "muon.momentum",
            UpdateRule::MuonStep { .. } => "muon.step",
        }
    }

    /// Returns the name of the kernel that begins an update, and its constants in order.
    pub(super) fn begin_kernel(&self) -> (&'static str, Vec<f32>) {
        match *self {
            UpdateRule::AdamW { beta1, beta2, epsilon, weight_decay } => {
                ("begin_adamw", vec![beta1, beta2, epsilon, weight_decay])
            }
            UpdateRule::Lion { beta1, beta2, weight_decay } => {
                ("begin_lion", vec![beta1, beta2, weight_decay])
            }
            UpdateRule::Sgd { momentum, weight_decay } => ("begin_sgd", vec![momentum, weight_decay]),
            UpdateRule::MuonMomentum { momentum } => ("begin_muon", vec![momentum]),
            UpdateRule::MuonStep { weight_decay } => ("begin_muon_step", vec![weight_decay]),
        }
    }

    /// Returns the name of the kernel that updates parameters with states of this storage format. It is
    /// instantiated for the gradients' types.
    pub(super) fn update_kernel(&self, storage: Storage) -> &'static str {
        match (self, storage) {
            (UpdateRule::AdamW { .. }, Storage::Single) => "adamw",
            (UpdateRule::AdamW { .. }, Storage::Rounded) => "adamw_rounded",
            (UpdateRule::AdamW { .. }, Storage::Quantised) => "adamw_quantised",
            (UpdateRule::Lion { .. }, Storage::Single) => "lion",
            (UpdateRule::Lion { .. }, Storage::Rounded) => "lion_rounded",
            (UpdateRule::Lion { .. }, Storage::Quantised) => "lion_quantised",
            (UpdateRule::Sgd { momentum: 0.0, .. }, _) => "sgd",
            (UpdateRule::Sgd { .. }, Storage::Single) => "sgd_momentum",
            (UpdateRule::Sgd { .. }, Storage::Rounded) => "sgd_momentum_rounded",
            (UpdateRule::Sgd { .. }, Storage::Quantised) => "sgd_momentum_quantised",
            (UpdateRule::MuonMomentum { .. }, Storage::Single) => "muon",
            (UpdateRule::MuonMomentum { .. }, Storage::Rounded) => "muon_rounded",
            (UpdateRule::MuonMomentum { .. }, Storage::Quantised) => "muon_quantised",
            (UpdateRule::MuonStep { .. }, _) => "muon_step",
        }
    }

    /// Computes the coefficients of update `count`, from 1, on the CPU.
    pub(super) fn coefficients(&self, learning_rate: f32, count: u32, factor: f32) -> Coefficients {
        match *self {
            UpdateRule::AdamW { beta1, beta2, epsilon, weight_decay } => {
                let constants = adamw::Constants { beta1, beta2, epsilon, weight_decay };
                adamw::coefficients(constants, learning_rate, count, factor)
            }
            UpdateRule::Lion { beta1, beta2, weight_decay } => {
                lion::coefficients([beta1, beta2], weight_decay, learning_rate, factor)
            }
            UpdateRule::Sgd { momentum, weight_decay } => {
                sgd::coefficients(momentum, weight_decay, learning_rate, count, factor)
            }
            UpdateRule::MuonMomentum { momentum } => muon::momentum_coefficients(momentum, factor),
            UpdateRule::MuonStep { weight_decay } => muon::step_coefficients(weight_decay, learning_rate),
        }
    }

    /// Updates the elements of `piece` on the CPU.
    #[inline(always)]
    pub(super) fn update<G: Float>(&self, piece: UpdateOperands<'_, G>, coefficients: &Coefficients) {
        match self {
            UpdateRule::AdamW { .. } => adamw::update(piece, coefficients),
            UpdateRule::Lion { .. } => lion::update(piece, coefficients),
            UpdateRule::Sgd { momentum: 0.0, .. } => sgd::update(piece, coefficients),
            UpdateRule::Sgd { .. } => sgd::update_with_momentum(piece, coefficients),
            UpdateRule::MuonMomentum { .. } => muon::momentum(piece, coefficients),
            UpdateRule::MuonStep { .. } => muon::step(piece, coefficients),
        }
    }
}
