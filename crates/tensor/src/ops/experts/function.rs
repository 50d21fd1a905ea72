//! The function between the two layers of an expert.

use crate::ops::Activation;
use crate::ops::gate::Gate;

/// The function between the two layers of an expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExpertFunction {
    /// A gate: the first layer has two outputs for each input of the second.
    Gated(Gate),
    /// An activation without a gate, as in Nemotron-H.
    Plain(Activation),
}

impl From<Gate> for ExpertFunction {
    fn from(gate: Gate) -> Self {
        ExpertFunction::Gated(gate)
    }
}

impl ExpertFunction {
    /// Returns the number of outputs of the first layer for each input of the second.
    #[must_use]
    pub const fn parts(self) -> usize {
        match self {
            ExpertFunction::Gated(_) => 2,
            ExpertFunction::Plain(_) => 1,
        }
    }
}

/// Returns the names of the kernels of an activation without a gate, forward and backward.
pub(super) const fn plain_kernels(activation: Activation) -> [&'static str; 2] {
    match activation {
        Activation::None => ["identity_rows", "identity_rows_gradient"],
        Activation::Relu => ["relu_rows", "relu_rows_gradient"],
        Activation::ReluSquared => ["relu_squared_rows", "relu_squared_rows_gradient"],
        Activation::Silu => ["silu_rows", "silu_rows_gradient"],
        Activation::Gelu => ["gelu_rows", "gelu_rows_gradient"],
        Activation::GeluErf => ["gelu_erf_rows", "gelu_erf_rows_gradient"],
        Activation::QuickGelu => ["quick_gelu_rows", "quick_gelu_rows_gradient"],
    }
}
