//! Layer normalisation with a weight and an optional bias.

use autograd::ops::NormSettings;
use autograd::{Tape, Var, Weight, ops};

use super::linear::short;
use super::{Norm, within};
use crate::error::Result;
use crate::init::Init;
use crate::parameters::Parameters;

/// Epsilon added to the variance, as in GPT-2 and PyTorch.
const EPSILON: f32 = 1e-5;

/// Normalises rows to mean 0 and variance 1, then applies the weight and the bias, if any.
#[derive(Debug)]
pub struct LayerNorm {
    name: String,
    weight: Weight,
    bias: Option<Weight>,
    settings: NormSettings,
}

impl LayerNorm {
    /// Registers `{name}.weight` (ones) and `{name}.bias` (zeros), both `[width]`.
    ///
    /// # Errors
    /// Memory is exhausted, or a name exists.
    pub fn new(parameters: &mut Parameters, name: &str, width: usize) -> Result<Self> {
        let layer = Self::without_bias(parameters, name, width)?;
        let bias = Some(parameters.create(&format!("{name}.bias"), [width], Init::Constant(0.0))?);
        Ok(LayerNorm { bias, ..layer })
    }

    /// Registers only `{name}.weight`.
    pub fn without_bias(parameters: &mut Parameters, name: &str, width: usize) -> Result<Self> {
        let weight = parameters.create(&format!("{name}.weight"), [width], Init::Constant(1.0))?;
        let weight = parameters.over_rows(weight);
        let settings = parameters.fp8().norm_settings(EPSILON);
        Ok(LayerNorm { name: name.to_owned(), weight, bias: None, settings })
    }

    /// Creates a norm without a weight.
    ///
    /// # Errors
    /// Memory is exhausted.
    pub fn without_weight(parameters: &mut Parameters, name: &str, width: usize) -> Result<Self> {
        let weight = parameters.ones(width)?;
        let weight = parameters.over_rows(weight);
        let settings = parameters.fp8().norm_settings(EPSILON);
        Ok(LayerNorm { name: name.to_owned(), weight, bias: None, settings })
    }

    /// Adds `epsilon` to the variance instead of 1e-5.
    #[must_use]
    pub fn with_epsilon(self, epsilon: f32) -> Self {
        LayerNorm { settings: NormSettings { epsilon, ..self.settings }, ..self }
    }

    /// Maps `[.., width]` to the same shape.
    ///
    /// # Errors
    /// The shape or dtype differs, or memory is exhausted.
    pub fn forward(&self, tape: &Tape, x_bld: Var) -> Result<Var> {
        within(tape, short(&self.name), || {
            Ok(ops::layer_norm(tape, x_bld, &self.weight, self.bias.as_ref(), self.settings)?)
        })
    }
}

impl Norm for LayerNorm {
    fn forward_residual(
        &self,
        tape: &Tape,
        residual_bld: Var,
        branch_bld: Option<Var>,
    ) -> Result<(Var, Var)> {
        within(tape, short(&self.name), || {
            Ok(ops::residual_layer_norm(
                tape,
                residual_bld,
                branch_bld,
                &self.weight,
                self.bias.as_ref(),
                self.settings,
            )?)
        })
    }

    fn forward(&self, tape: &Tape, x_bld: Var) -> Result<Var> {
        LayerNorm::forward(self, tape, x_bld)
    }
}
