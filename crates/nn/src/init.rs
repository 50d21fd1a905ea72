//! Initial values: functions of seed, parameter name and element index, the same on any grid of ranks.

use std::ops::Range;

use tensor::ops::{fill, random};
use tensor::{Result, Tensor};

/// Initial values of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// The same value for every element.
    Constant(f32),
    /// Normal distribution with mean 0 and this standard deviation.
    Normal(f32),
    /// Uniform distribution between ± this bound.
    Uniform(f32),
    /// The natural logarithm of each element's number in the parameter, counted from 1.
    LogarithmOfNumber,
}

impl Init {
    /// Returns PyTorch's default for a linear layer and its bias: uniform between ± 1/√inputs.
    pub fn uniform_fan_in(inputs: usize) -> Self {
        Init::Uniform(1.0 / (inputs as f32).sqrt())
    }

    /// Fills `tensor`, which holds the ranges `elements` of a parameter, one after another.
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
            Init::LogarithmOfNumber => {
                fill::computed(tensor, elements, |index| libm::log((index + 1) as f64) as f32)
            }
        }
    }
}
