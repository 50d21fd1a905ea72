//! A linear layer with activation, with or without a bias.

use autograd::ops::{Adapter, Fp8Input, Fp8Linear, Fp8Weight, PartialSums};
use autograd::{Tape, Var, Weight, ops};
use collective::Axis;
use tensor::ops::Activation;

use super::{Layer, LinearCut, adapter, within};
use crate::error::Result;
use crate::fp8::LinearRole;
use crate::init::Init;
use crate::parameters::Parameters;
use crate::sharding::Sharding;

/// `y = activation(x · Wᵀ + b)` with weight `[outputs, inputs]` and bias `[outputs]`.
#[derive(Debug)]
pub struct Linear {
    name: String,
    pub(super) weight: Weight,
    pub(super) bias: Option<Weight>,
    activation: Activation,
    pub(super) adapter: Option<Adapter>,
    /// Copies of the weight, if the layer multiplies in FP8.
    pub(super) fp8: Option<Fp8Weight>,
    sums: PartialSums,
}

impl Linear {
    /// Registers `{name}.weight`, an adapter if the layer has one, and `{name}.bias`. A uniform `init` also
    /// initialises the bias, as in PyTorch; otherwise the bias starts at zero, as in GPT-2.
    ///
    /// # Errors
    /// Out of memory, a name that exists.
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

    /// Registers a layer that gives the model's result, with a bias if there is a `bias_init`.
    ///
    /// # Errors
    /// As [`Linear::new`].
    pub fn head(
        parameters: &mut Parameters,
        name: &str,
        [inputs, outputs]: [usize; 2],
        init: Init,
        bias_init: Option<Init>,
    ) -> Result<Self> {
        let weight = (Sharding::replicated([outputs, inputs]), LinearCut::WHOLE);
        let layer = Self::create(parameters, name, weight, init, Activation::None, LinearRole::Head)?;
        let bias = bias_init.map(|init| parameters.create(&format!("{name}.bias"), [outputs], init));
        Ok(Linear { bias: bias.transpose()?, ..layer })
    }

    /// Registers a layer without a bias.
    ///
    /// # Errors
    /// As [`Linear::new`].
    pub fn without_bias(
        parameters: &mut Parameters,
        name: &str,
        inputs: usize,
        outputs: usize,
        init: Init,
        activation: Activation,
    ) -> Result<Self> {
        let weight = (Sharding::replicated([outputs, inputs]), LinearCut::WHOLE);
        Self::create(parameters, name, weight, init, activation, LinearRole::Inner)
    }

    /// Registers a lane of a layer with weight `[outputs, inputs]`, or the layer if layers are not divided,
    /// with a bias if `biases`. The bias of lanes that divide the inputs belongs to all of them.
    ///
    /// # Errors
    /// As [`Linear::new`]; a dimension that the lanes do not divide.
    pub fn lane(
        parameters: &mut Parameters,
        name: &str,
        ([inputs, outputs], cut): ([usize; 2], LinearCut<'_>),
        init: Init,
        biases: bool,
        activation: Activation,
    ) -> Result<Self> {
        let lanes = parameters.lanes();
        let whole = Sharding::replicated([outputs, inputs]);
        let weight = match cut {
            LinearCut::Outputs(groups) => whole.divided_in_groups(Axis::Tensor, 0, lanes.all, groups),
            LinearCut::Inputs => whole.divided(Axis::Tensor, 1, lanes.all),
        };
        let layer = Self::create(parameters, name, (weight?, cut), init, activation, LinearRole::Inner)?;
        let bias = Sharding::replicated([outputs]);
        let bias = match cut {
            LinearCut::Outputs(groups) => Some(bias.divided_in_groups(Axis::Tensor, 0, lanes.all, groups)?),
            LinearCut::Inputs => (!lanes.is_divided()).then_some(bias),
        };
        let bias = bias.filter(|_| biases).map(|sharding| {
            parameters.create_sharded(&format!("{name}.bias"), sharding, Init::Constant(0.0))
        });
        Ok(Linear { bias: bias.transpose()?, sums: sums_of(cut, lanes.is_divided()), ..layer })
    }

    /// Returns the same layer as a lane of the head: it divides the outputs.
    pub(super) fn lane_of_head(self) -> Self {
        Linear { sums: sums_of(LinearCut::WHOLE, true), ..self }
    }

    /// Registers a lane of the head, whose `outputs` are divided.
    ///
    /// # Errors
    /// As [`Linear::lane`].
    pub(crate) fn head_lane(
        parameters: &mut Parameters,
        name: &str,
        [inputs, outputs]: [usize; 2],
        init: Init,
    ) -> Result<Self> {
        let weight = Sharding::replicated([outputs, inputs]);
        let weight = weight.divided(Axis::Tensor, 0, parameters.lanes().all)?;
        Self::create(parameters, name, (weight, LinearCut::WHOLE), init, Activation::None, LinearRole::Head)
    }

    fn create(
        parameters: &mut Parameters,
        name: &str,
        (sharding, cut): (Sharding, LinearCut<'_>),
        init: Init,
        activation: Activation,
        role: LinearRole,
    ) -> Result<Self> {
        let whole = sharding.whole();
        let weight_name = format!("{name}.weight");
        let weight = match role {
            LinearRole::Inner => parameters.create_matrix(&weight_name, sharding, init)?,
            LinearRole::Head => parameters.create_sharded(&weight_name, sharding, init)?,
        };
        let adapter = adapter::create(parameters, name, ([whole.rows(), whole.columns()], cut))?;
        let is_lane = parameters.lanes().is_divided();
        let fp8 = parameters.fp8_mut().create((name, is_lane), &weight, role)?;
        let (name, sums) = (name.to_owned(), PartialSums::default());
        Ok(Linear { name, weight, bias: None, activation, adapter, fp8, sums })
    }

    /// Returns the same layer without its activation.
    pub(super) fn without_activation(self) -> Self {
        Linear { activation: Activation::None, ..self }
    }

    /// A layer without bias that uses another layer's weight, as a tied output head does.
    ///
    /// # Errors
    /// No such weight.
    pub fn tied(parameters: &mut Parameters, name: &str, weight: &str) -> Result<Self> {
        let weight = parameters.reuse(weight)?;
        let (name, activation) = (name.to_owned(), Activation::None);
        let sums = PartialSums::default();
        Ok(Linear { name, weight, bias: None, activation, adapter: None, fp8: None, sums })
    }

    /// Maps `[.., inputs]` to `[.., outputs]`.
    ///
    /// # Errors
    /// Another shape or type, out of memory.
    pub fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        let Linear { name, weight, bias, activation, adapter, .. } = self;
        let activated = |y: Var| match activation {
            Activation::None => Ok(y),
            activation => Ok(ops::activation(tape, y, *activation)?),
        };
        within(tape, short(name), || match (adapter, self.in_fp8()) {
            (None, None) => Ok(ops::lane_linear(tape, x, weight, bias.as_ref(), *activation, self.sums)?),
            (Some(adapter), _) => activated(ops::adapted_linear(tape, x, weight, bias.as_ref(), adapter)?),
            (None, Some(layer)) => activated(ops::fp8_linear(tape, x, &layer, Fp8Input::Plain)?),
        })
    }

    /// Returns whether the layer's operands are measured by the operators that produce them, for FP8 matmuls.
    pub(super) fn measures(&self) -> bool {
        self.fp8.as_ref().is_some_and(Fp8Weight::is_tensorwise)
    }

    /// The layer's parameters, if it multiplies in FP8.
    pub(super) fn in_fp8(&self) -> Option<Fp8Linear> {
        let Linear { weight, bias, fp8, sums, .. } = self;
        let of = |copies: &Fp8Weight| {
            let (copies, weight, bias) = (copies.clone(), weight.clone(), bias.clone());
            Fp8Linear { weight, copies, bias, sums: *sums }
        };
        fp8.as_ref().map(of)
    }
}

/// The results of a lane of a layer that are parts of sums over lanes.
const fn sums_of(cut: LinearCut<'_>, is_divided: bool) -> PartialSums {
    let output = matches!(cut, LinearCut::Inputs);
    PartialSums { output: is_divided && output, input_gradient: is_divided && !output }
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
