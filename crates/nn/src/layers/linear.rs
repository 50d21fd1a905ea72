//! A linear map with bias and activation.

use autograd::{Tape, Var, Weight, ops};
use tensor::ops::Activation;

use super::{Layer, within};
use crate::error::Result;
use crate::init::Init;
use crate::parameters::Parameters;

/// `y = activation(x · Wᵀ + b)` with weight [outputs, inputs] and bias [outputs].
#[derive(Debug)]
pub struct Linear {
    name: String,
    weight: Weight,
    bias: Option<Weight>,
    activation: Activation,
}

impl Linear {
    /// Registers `{name}.weight` and `{name}.bias`. The bias starts as the weight does if that is uniform
    /// (PyTorch's habit for plain linear layers), else at zero (GPT-2's).
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
        let weight = parameters.create(&format!("{name}.weight"), [outputs, inputs], init)?;
        let bias = Some(parameters.create(&format!("{name}.bias"), [outputs], bias_init)?);
        Ok(Linear { name: name.to_owned(), weight, bias, activation })
    }

    /// A linear map without bias whose weight is another layer's (a tied output head).
    pub fn tied(parameters: &mut Parameters, name: &str, weight: &str) -> Result<Self> {
        let weight = parameters.reuse(weight)?;
        Ok(Linear { name: name.to_owned(), weight, bias: None, activation: Activation::None })
    }

    /// [.., inputs] to [.., outputs].
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

/// The last part of a dotted name: the scopes around it give the rest.
pub(super) fn short(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
