//! A linear layer with activation, with or without a bias.

use autograd::{Tape, Var, Weight, ops};
use tensor::ops::Activation;

use super::{Layer, within};
use crate::error::Result;
use crate::init::Init;
use crate::parameters::Parameters;

/// `y = activation(x · Wᵀ + b)` with weight `[outputs, inputs]` and bias `[outputs]`.
#[derive(Debug)]
pub struct Linear {
    name: String,
    weight: Weight,
    bias: Option<Weight>,
    activation: Activation,
}

impl Linear {
    /// Registers `{name}.weight` and `{name}.bias`. A uniform `init` also initialises the bias, as in
    /// PyTorch; otherwise the bias starts at zero, as in GPT-2. Errors: out of memory, a name that exists.
    pub fn new(
        parameters: &mut Parameters,
        name: &str,
        inputs: usize,
        outputs: usize,
        init: Init,
        activation: Activation,
    ) -> Result<Self> {
        let bias_init = match init {
            Init::Uniform(bound) => Init::Uniform(bound),
            Init::Normal(_) | Init::Constant(_) => Init::Constant(0.0),
        };
        let layer = Self::without_bias(parameters, name, inputs, outputs, init, activation)?;
        let bias = Some(parameters.create(&format!("{name}.bias"), [outputs], bias_init)?);
        Ok(Linear { bias, ..layer })
    }

    /// Registers `{name}.weight` alone. Errors: as [`Linear::new`].
    pub fn without_bias(
        parameters: &mut Parameters,
        name: &str,
        inputs: usize,
        outputs: usize,
        init: Init,
        activation: Activation,
    ) -> Result<Self> {
        let weight = parameters.create(&format!("{name}.weight"), [outputs, inputs], init)?;
        Ok(Linear { name: name.to_owned(), weight, bias: None, activation })
    }

    /// A layer without bias that uses another layer's weight, as a tied output head does. Errors: no such
    /// weight.
    pub fn tied(parameters: &mut Parameters, name: &str, weight: &str) -> Result<Self> {
        let weight = parameters.reuse(weight)?;
        Ok(Linear { name: name.to_owned(), weight, bias: None, activation: Activation::None })
    }

    /// Its weight, `[outputs, inputs]`.
    pub(super) fn weight(&self) -> &Weight {
        &self.weight
    }

    /// Maps `[.., inputs]` to `[.., outputs]`. Errors: another shape or type, out of memory.
    pub fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        within(tape, short(&self.name), || {
            Ok(ops::linear(tape, x, &self.weight, self.bias.as_ref(), self.activation)?)
        })
    }
}

impl Layer for Linear {
    type Stream = Var;

    fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        Linear::forward(self, tape, x)
    }
}

/// The last part of a dotted name; the enclosing scopes name the other parts.
pub(super) fn short(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
