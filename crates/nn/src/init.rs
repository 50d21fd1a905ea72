//! Initial values: a function of (seed, parameter's name, element), the same on any grid of ranks.

use std::ops::Range;

use tensor::ops::{fill, random};
use tensor::{Result, Tensor};

/// Initial values of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// The same value for every element.
    Constant(f32),
    /// Normal with mean 0 and this standard deviation.
    Normal(f32),
    /// Uniform in ± this bound.
    Uniform(f32),
}

impl Init {
    /// PyTorch's default for a linear layer and its bias: uniform in ± 1/√inputs.
    pub fn uniform_fan_in(inputs: usize) -> Self {
        Init::Uniform(1.0 / (inputs as f32).sqrt())
    }

    /// Fills `tensor`, which holds these elements of a parameter, one range after the other.
    pub(crate) fn fill(
        self,
        tensor: &Tensor,
        elements: &[Range<usize>],
        seed: u64,
        name: &str,
    ) -> Result<()> {
        match self {
            Init::Constant(value) => fill::constant(tensor, value),
            Init::Normal(deviation) => random::normal_part(tensor, elements, seed, name, 0.0, deviation),
            Init::Uniform(bound) => random::uniform_part(tensor, elements, seed, name, -bound, bound),
        }
    }
}
