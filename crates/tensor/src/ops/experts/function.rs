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
