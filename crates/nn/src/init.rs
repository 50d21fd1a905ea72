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
    /// The natural logarithm of uniform numbers between these bounds.
    LogarithmOfUniform([f32; 2]),
    /// Numbers whose softplus is distributed between these bounds, uniformly in its logarithm.
    InverseOfSoftplus([f32; 2]),
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
            Init::LogarithmOfUniform([low, high]) => fill::computed(tensor, elements, |index| {
                libm::log(between(seed, name, index, [low, high])) as f32
            }),
            Init::InverseOfSoftplus(bounds) => fill::computed(tensor, elements, |index| {
                let logarithm =
                    between(seed, name, index, bounds.map(|bound| libm::log(f64::from(bound)) as f32));
                let softplus = libm::exp(logarithm);
                // ln(exp(s) - 1), which is exact for small s, too.
                (softplus + libm::log(-libm::expm1(-softplus))) as f32
            }),
        }
    }
}

/// Returns a uniform number between the bounds, a function of the seed, the parameter's name and the index.
fn between(seed: u64, name: &str, index: usize, bounds: [f32; 2]) -> f64 {
    let [low, high] = bounds.map(f64::from);
    let counter = [index as u32, (index as u64 >> 32) as u32, 0, 0];
    let [word, ..] = philox::philox4x32(philox::key_of_name(seed, name), counter);
    low + (high - low) * f64::from(philox::uniform(word))
}

/// Returns the initial values of the parameters `A_log` and `dt_bias` of decays exp(-exp(`A_log`) * step), as
/// in Mamba-2 (Dao and Gu, 2024). Heads then forget between 0.1 and 80 % of their states with each token.
pub(crate) fn initial_decays() -> [Init; 2] {
    [Init::LogarithmOfUniform([1.0, 16.0]), Init::InverseOfSoftplus([1e-3, 0.1])]
}

#[cfg(test)]
mod tests {
    use device::{Category, DType, Device, DeviceOptions, Request};

    use super::*;

    fn filled(init: Init, elements: Range<usize>) -> Vec<f32> {
        let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
        let request = Request::new(Category::Parameter, "test");
        let tensor = Tensor::empty(&device, [elements.len()], DType::F32, request).unwrap();
        init.fill(&tensor, std::slice::from_ref(&elements), 7, "A_log").unwrap();
        tensor.to_vec::<f32>().unwrap()
    }

    #[test]
    fn initial_decays_are_within_bounds_and_the_same_in_shards() {
        let [speed, step] = initial_decays();
        for (init, is_step, [low, high]) in [(speed, false, [1.0, 16.0]), (step, true, [1e-3, 0.1])] {
            let whole = filled(init, 0..64);
            assert_eq!(filled(init, 16..40), whole[16..40]);
            let read = |value: f64| if is_step { value.exp().ln_1p() } else { value.exp() };
            let values: Vec<f64> = whole.into_iter().map(|value| read(f64::from(value))).collect();
            assert!(values.iter().all(|value| (0.999 * low..1.001 * high).contains(value)), "{values:?}");
            // Some are near each bound.
            let near = |bound: f64| values.iter().any(|value| (value / bound).ln().abs() < 0.5);
            assert!(near(low) && near(high), "{values:?}");
        }
    }
}
