//! Layer normalisation with gain and bias.

use autograd::{Tape, Var, Weight, ops};

use super::linear::short;
use super::within;
use crate::error::Result;
use crate::init::Init;
use crate::parameters::Parameters;

/// GPT-2's and PyTorch's.
const EPSILON: f32 = 1e-5;

/// Normalises rows of `width` to mean 0 and variance 1, then applies gain and bias.
#[derive(Debug)]
pub struct LayerNorm {
    name: String,
    gain: Weight,
    bias: Weight,
}

impl LayerNorm {
    /// Registers `{name}.weight` (ones) and `{name}.bias` (zeros).
    pub fn new(parameters: &mut Parameters, name: &str, width: usize) -> Result<Self> {
        let gain = parameters.create(&format!("{name}.weight"), [width], Init::Constant(1.0))?;
        let bias = parameters.create(&format!("{name}.bias"), [width], Init::Constant(0.0))?;
        Ok(LayerNorm { name: name.to_owned(), gain, bias })
    }

    /// [.., width] to the same shape.
    pub fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        within(tape, short(&self.name), || Ok(ops::layer_norm(tape, x, &self.gain, &self.bias, EPSILON)?))
    }

    /// Adds `branch`, if there is one, to `residual` and normalises the sum: (sum, normalised).
    pub fn forward_residual(&self, tape: &Tape, residual: Var, branch: Option<Var>) -> Result<(Var, Var)> {
        within(tape, short(&self.name), || {
            Ok(ops::residual_layer_norm(tape, residual, branch, &self.gain, &self.bias, EPSILON)?)
        })
    }
}
