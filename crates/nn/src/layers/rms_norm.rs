//! RMS normalisation with a weight.

use autograd::ops::NormSettings;
use autograd::{Tape, Var, Weight, ops};

use super::linear::short;
use super::{Norm, within};
use crate::error::Result;
use crate::init::Init;
use crate::parameters::Parameters;

/// Normalises rows to mean square 1, then applies the weight.
#[derive(Debug)]
pub struct RmsNorm {
    name: String,
    weight: Weight,
    settings: NormSettings,
}

impl RmsNorm {
    /// Registers `{name}.weight` (ones), `[width]`. `epsilon` is added to the mean square.
    ///
    /// # Errors
    /// Memory is exhausted, or the name exists.
    pub fn new(parameters: &mut Parameters, name: &str, width: usize, epsilon: f32) -> Result<Self> {
        let weight = parameters.create(&format!("{name}.weight"), [width], Init::Constant(1.0))?;
        let weight = parameters.over_rows(weight);
        let settings = parameters.fp8().norm_settings(epsilon);
        Ok(RmsNorm { name: name.to_owned(), weight, settings })
    }

    /// Registers `{name}.weight` (zeros), `[width]`, which stores the norm's weight minus 1.
    pub fn less_one(parameters: &mut Parameters, name: &str, width: usize, epsilon: f32) -> Result<Self> {
        let weight = parameters.create(&format!("{name}.weight"), [width], Init::Constant(0.0))?.plus(1.0);
        let weight = parameters.over_rows(weight);
        let settings = parameters.fp8().norm_settings(epsilon);
        Ok(RmsNorm { name: name.to_owned(), weight, settings })
    }

    /// Creates a norm without a weight.
    ///
    /// # Errors
    /// Memory is exhausted.
    pub fn without_weight(
        parameters: &mut Parameters,
        name: &str,
        width: usize,
        epsilon: f32,
    ) -> Result<Self> {
        let weight = parameters.ones(width)?;
        let weight = parameters.over_rows(weight);
        let settings = parameters.fp8().norm_settings(epsilon);
        Ok(RmsNorm { name: name.to_owned(), weight, settings })
    }

    /// Maps `[.., width]` to the same shape.
    ///
    /// # Errors
    /// The shape or dtype differs, or memory is exhausted.
    pub fn forward(&self, tape: &Tape, x_bld: Var) -> Result<Var> {
        within(tape, short(&self.name), || Ok(ops::rms_norm(tape, x_bld, &self.weight, self.settings)?))
    }
}

impl Norm for RmsNorm {
    fn forward_residual(
        &self,
        tape: &Tape,
        residual_bld: Var,
        branch_bld: Option<Var>,
    ) -> Result<(Var, Var)> {
        within(tape, short(&self.name), || {
            Ok(ops::residual_rms_norm(tape, residual_bld, branch_bld, &self.weight, self.settings)?)
        })
    }

    fn forward(&self, tape: &Tape, x_bld: Var) -> Result<Var> {
        RmsNorm::forward(self, tape, x_bld)
    }
}
