//! A linear layer with activation, with or without a bias.

use autograd::ops::Adapter;
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
    pub(super) weight: Weight,
    pub(super) bias: Option<Weight>,
    activation: Activation,
    pub(super) adapter: Option<Adapter>,
}

impl Linear {
    /// Registers `{name}.weight`, an adapter if the layer has one, and `{name}.bias`. A uniform `init` also
    /// initialises the bias, as in PyTorch; otherwise the bias starts at zero, as in GPT-2. Errors: out of
    /// memory, a name that exists.
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

    /// Registers a layer without a bias. Errors: as [`Linear::new`].
    pub fn without_bias(
        parameters: &mut Parameters,
        name: &str,
        inputs: usize,
        outputs: usize,
        init: Init,
        activation: Activation,
    ) -> Result<Self> {
        let weight = parameters.create(&format!("{name}.weight"), [outputs, inputs], init)?;
        let adapter = parameters.create_adapter(name, [outputs, inputs])?;
        Ok(Linear { name: name.to_owned(), weight, bias: None, activation, adapter })
    }

    /// A layer without bias that uses another layer's weight, as a tied output head does. Errors: no such
    /// weight.
    pub fn tied(parameters: &mut Parameters, name: &str, weight: &str) -> Result<Self> {
        let weight = parameters.reuse(weight)?;
        let (name, activation) = (name.to_owned(), Activation::None);
        Ok(Linear { name, weight, bias: None, activation, adapter: None })
    }

    /// Maps `[.., inputs]` to `[.., outputs]`. Errors: another shape or type, out of memory.
    pub fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        let Linear { name, weight, bias, activation, adapter } = self;
        within(tape, short(name), || match adapter {
            None => Ok(ops::linear(tape, x, weight, bias.as_ref(), *activation)?),
            Some(adapter) => {
                let y = ops::adapted_linear(tape, x, weight, bias.as_ref(), adapter)?;
                if *activation == Activation::None {
                    return Ok(y);
                }
                Ok(ops::activation(tape, y, *activation)?)
            }
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
