//! A linear layer with activation, with or without a bias.

use autograd::ops::{Adapter, Fp8Input, Fp8Linear, Fp8Weight, PartialSums};
use autograd::{Tape, Var, Weight, map, ops};
use device::DType;
use tensor::ops::Activation;

use super::edges::ShardEdges;
use super::row_adapter::RowAdapter;
use super::{Layer, adapter, within};
use crate::error::{NnError, Result};
use crate::fp8::LinearRole;
use crate::init::Init;
use crate::parameters::Parameters;
use crate::placements::ParallelStyle;

/// `y = activation(x · Wᵀ + b)` with weight `[outputs, inputs]` and bias `[outputs]`.
///
/// A layer that the family's table of placements names is in shards: column-parallel, of which each shard
/// takes the whole input and has some of the outputs, or row-parallel, whose result is the sum over shards.
#[derive(Debug)]
pub struct Linear {
    name: String,
    /// The shards that are here.
    pub(super) shards: Vec<LinearShard>,
    style: Option<ParallelStyle>,
    edges: ShardEdges,
    /// The bias of a row-parallel layer, which is added to the sum.
    bias: Option<Weight>,
}

/// One shard of a linear layer, or the whole layer.
#[derive(Debug)]
pub(super) struct LinearShard {
    pub(super) weight: Weight,
    pub(super) bias: Option<Weight>,
    activation: Activation,
    pub(super) adapter: Option<Adapter>,
    /// The adapter of a layer on rows that are in shards.
    row_adapter: Option<RowAdapter>,
    /// Copies of the weight, if the layer multiplies in FP8.
    pub(super) fp8: Option<Fp8Weight>,
    sums: PartialSums,
}

/// Sizes and initial values of a layer.
struct Sizes {
    inputs: usize,
    outputs: usize,
    init: Init,
    /// Initial values of the bias, if there is one.
    bias: Option<Init>,
    activation: Activation,
    role: LinearRole,
}

impl Linear {
    /// Registers `{name}.weight`, an adapter if the layer has one, and `{name}.bias`. A uniform `init` also
    /// initialises the bias, as in PyTorch; otherwise the bias starts at zero, as in GPT-2.
    ///
    /// # Errors
    /// Out of memory, a name that exists, a dimension that shards do not divide.
    pub fn new(
        parameters: &mut Parameters,
        name: &str,
        inputs: usize,
        outputs: usize,
        init: Init,
        activation: Activation,
    ) -> Result<Self> {
        let bias = match init {
            Init::Uniform(bound) => Init::Uniform(bound),
            Init::Normal(_) | Init::Constant(_) => Init::Constant(0.0),
        };
        let (bias, role) = (Some(bias), LinearRole::Inner);
        Self::create(parameters, name, &Sizes { inputs, outputs, init, bias, activation, role })
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
        let (bias, activation, role) = (bias_init, Activation::None, LinearRole::Head);
        Self::create(parameters, name, &Sizes { inputs, outputs, init, bias, activation, role })
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
        Self::optional_bias(parameters, name, [inputs, outputs], init, (false, activation))
    }

    /// Registers a layer with a bias that starts at zero, or without one.
    ///
    /// # Errors
    /// As [`Linear::new`].
    pub(super) fn optional_bias(
        parameters: &mut Parameters,
        name: &str,
        [inputs, outputs]: [usize; 2],
        init: Init,
        (has_bias, activation): (bool, Activation),
    ) -> Result<Self> {
        let (bias, role) = (has_bias.then_some(Init::Constant(0.0)), LinearRole::Inner);
        Self::create(parameters, name, &Sizes { inputs, outputs, init, bias, activation, role })
    }

    fn create(parameters: &mut Parameters, name: &str, sizes: &Sizes) -> Result<Self> {
        let style = parameters.style(name);
        let shards = parameters.for_each_shard(style.is_some(), |parameters| {
            LinearShard::new(parameters, name, sizes, style.as_ref())
        })?;
        let bias = match (&style, sizes.bias) {
            (Some(ParallelStyle::Row), Some(init)) => {
                Some(parameters.create(&format!("{name}.bias"), [sizes.outputs], init)?)
            }
            _ => None,
        };
        let edges = if style.is_some() { ShardEdges::new(parameters) } else { ShardEdges::WHOLE };
        Ok(Linear { name: name.to_owned(), shards, style, edges, bias })
    }

    /// A layer without bias that uses another layer's weight, as a tied output head does.
    ///
    /// # Errors
    /// No such weight.
    pub fn tied(parameters: &mut Parameters, name: &str, weight: &str) -> Result<Self> {
        let style = parameters.style(weight);
        let (sums, activation) = (LinearShard::sums(style.as_ref()), Activation::None);
        let shards = parameters.for_each_shard(style.is_some(), |parameters| {
            let weight = parameters.reuse(weight)?;
            Ok(LinearShard {
                weight,
                bias: None,
                activation,
                adapter: None,
                row_adapter: None,
                fp8: None,
                sums,
            })
        })?;
        let edges = if style.is_some() { ShardEdges::new(parameters) } else { ShardEdges::WHOLE };
        Ok(Linear { name: name.to_owned(), shards, style, edges, bias: None })
    }

    /// Returns the same layer without its activation.
    pub(super) fn without_activation(mut self) -> Self {
        self.shards.iter_mut().for_each(|shard| shard.activation = Activation::None);
        self
    }

    /// Maps `[.., inputs]` to `[.., outputs]`, of which shards have some each if the layer is
    /// column-parallel.
    ///
    /// # Errors
    /// Another shape or type, out of memory, a failed collective.
    pub fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        within(tape, short(&self.name), || {
            let dtype = x.tensor().dtype();
            let x = self.enter(tape, x)?;
            let y = map(tape, [x], |block, [x]| self.shards[block.shard].forward(tape, x))?;
            match self.style {
                Some(ParallelStyle::Column(_)) => Ok(self.edges.columns(y)),
                Some(ParallelStyle::Row) => self.edges.leave(tape, y, self.bias.as_ref(), dtype),
                None => Ok(y),
            }
        })
    }

    /// Maps the blocks of `x`, those of shards that are here, without the edges of the layer.
    ///
    /// # Errors
    /// As [`Linear::forward`].
    pub(super) fn forward_blocks(&self, tape: &Tape, x: Var) -> Result<Var> {
        within(tape, short(&self.name), || {
            map(tape, [x], |block, [x]| self.shards[block.shard].forward(tape, x))
        })
    }

    /// Maps `x` through a column-parallel and a row-parallel layer, one shard after the other: the first, and
    /// of its result `function`, which a second layer in FP8 computes, and the second.
    ///
    /// # Errors
    /// As [`Linear::forward`].
    pub(super) fn forward_both(
        [first, second]: &[Linear; 2],
        tape: &Tape,
        x: Var,
        function: Fp8Input,
    ) -> Result<Var> {
        let dtype = x.tensor().dtype();
        let x = first.enter(tape, x)?;
        let y = map(tape, [x], |block, [x]| {
            let hidden = first.forward_shard(tape, block.shard, x)?;
            second.forward_shard_fp8(tape, block.shard, hidden, function)
        })?;
        second.leave(tape, y, dtype)
    }

    /// Returns the sum over the shards of a row-parallel layer, with its bias.
    ///
    /// # Errors
    /// Out of memory, a failed collective.
    pub(super) fn leave(&self, tape: &Tape, y: Var, dtype: DType) -> Result<Var> {
        match self.style {
            Some(ParallelStyle::Row) => {
                within(tape, short(&self.name), || self.edges.leave(tape, y, self.bias.as_ref(), dtype))
            }
            _ => Ok(y),
        }
    }

    /// The block of `x` of one shard, without the edges of the layer.
    ///
    /// # Errors
    /// As [`Linear::forward`].
    pub(super) fn forward_shard(&self, tape: &Tape, shard: usize, x: Var) -> Result<Var> {
        within(tape, short(&self.name), || self.shards[shard].forward(tape, x))
    }

    /// [`Linear::forward_shard`] of `function` of `x`, which a layer in FP8 computes.
    ///
    /// # Errors
    /// As [`Linear::forward`].
    pub(super) fn forward_shard_fp8(
        &self,
        tape: &Tape,
        shard: usize,
        x: Var,
        function: Fp8Input,
    ) -> Result<Var> {
        within(tape, short(&self.name), || match function {
            Fp8Input::Plain => self.shards[shard].forward(tape, x),
            function => self.shards[shard].forward_fp8(tape, x, function),
        })
    }

    /// The edges of the layer.
    pub(super) fn edges(&self) -> ShardEdges {
        self.edges
    }

    /// Returns a copy of the input for each shard of a column-parallel layer.
    ///
    /// # Errors
    /// Out of memory, a failed collective.
    pub(super) fn enter(&self, tape: &Tape, x: Var) -> Result<Var> {
        match self.style {
            Some(ParallelStyle::Column(_)) => self.edges.enter(tape, x),
            _ => Ok(x),
        }
    }

    /// The layer, if it is whole.
    pub(super) fn whole(&self) -> Option<&LinearShard> {
        self.shards.first().filter(|_| self.style.is_none())
    }

    /// The layer, which is whole.
    ///
    /// # Errors
    /// A layer in shards.
    pub(super) fn into_whole(mut self) -> Result<LinearShard> {
        let text = || NnError::Sizes(format!("{} is in shards", self.name));
        self.shards.pop().ok_or_else(text)
    }

    /// Returns whether the layer's operands are measured by the operators that produce them, for FP8 matmuls.
    pub(super) fn measures(&self) -> bool {
        self.shards.iter().any(|shard| shard.fp8.as_ref().is_some_and(Fp8Weight::is_tensorwise))
    }

    /// Returns whether the layer multiplies in FP8.
    pub(super) fn is_in_fp8(&self) -> bool {
        self.shards.iter().any(|shard| shard.fp8.is_some())
    }

    /// Returns whether the layer has an adapter.
    pub(super) fn is_adapted(&self) -> bool {
        self.shards.iter().any(|shard| shard.adapter.is_some())
    }
}

impl LinearShard {
    fn new(
        parameters: &mut Parameters,
        name: &str,
        sizes: &Sizes,
        style: Option<&ParallelStyle>,
    ) -> Result<Self> {
        let Sizes { inputs, outputs, init, bias, activation, role } = *sizes;
        let sharding = parameters.sharding([outputs, inputs], style)?;
        let weight_name = format!("{name}.weight");
        let weight = match role {
            LinearRole::Inner => parameters.create_matrix(&weight_name, sharding, init)?,
            LinearRole::Head => parameters.create_sharded(&weight_name, sharding, init)?,
        };
        let mut layer = LinearShard {
            weight,
            bias: None,
            activation,
            adapter: None,
            row_adapter: None,
            fp8: None,
            sums: Self::sums(style),
        };
        // A whole layer on rows that are in shards multiplies in the compute type.
        if style.is_none() && parameters.shards_rows() {
            if bias.is_some() || activation != Activation::None {
                let text =
                    format!("{name}: a whole layer between sharded ones has no bias and no activation");
                return Err(NnError::Sizes(text));
            }
            layer.weight = parameters.over_rows(layer.weight);
            layer.row_adapter = RowAdapter::new(parameters, name, [inputs, outputs])?;
            return Ok(layer);
        }
        layer.adapter = adapter::create(parameters, name, ([outputs, inputs], style))?;
        layer.fp8 = parameters.fp8_mut().create((name, style.is_some()), &layer.weight, role)?;
        if let (Some(init), false) = (bias, matches!(style, Some(ParallelStyle::Row))) {
            let sharding = parameters.sharding([outputs], style)?;
            layer.bias = Some(parameters.create_sharded(&format!("{name}.bias"), sharding, init)?);
        }
        Ok(layer)
    }

    /// The results of a shard that are partial sums.
    const fn sums(style: Option<&ParallelStyle>) -> PartialSums {
        PartialSums {
            output: matches!(style, Some(ParallelStyle::Row)),
            input_gradient: matches!(style, Some(ParallelStyle::Column(_))),
        }
    }

    /// Returns whether one matmul computes the layer.
    pub(super) fn is_plain(&self) -> bool {
        self.adapter.is_none() && self.row_adapter.is_none() && self.fp8.is_none()
    }

    fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        let LinearShard { weight, bias, activation, sums, .. } = self;
        let activated = |y: Var| match activation {
            Activation::None => Ok(y),
            activation => Ok(ops::activation(tape, y, *activation)?),
        };
        if weight.is_over_rows() {
            let Some(adapter) = &self.row_adapter else { return Ok(ops::row_linear(tape, x, weight)?) };
            let y = ops::row_linear(tape, x.clone(), weight)?;
            return Ok(ops::add(tape, y, adapter.forward(tape, x)?)?);
        }
        match (&self.adapter, &self.fp8) {
            (None, None) => Ok(ops::partial_linear(tape, x, weight, bias.as_ref(), *activation, *sums)?),
            (Some(adapter), _) => activated(ops::adapted_linear(tape, x, weight, bias.as_ref(), adapter)?),
            (None, Some(_)) => activated(self.forward_fp8(tape, x, Fp8Input::Plain)?),
        }
    }

    fn forward_fp8(&self, tape: &Tape, x: Var, function: Fp8Input) -> Result<Var> {
        let LinearShard { weight, bias, fp8, sums, .. } = self;
        let Some(copies) = fp8 else { return self.forward(tape, x) };
        let (copies, weight, bias) = (copies.clone(), weight.clone(), bias.clone());
        let layer = Fp8Linear { weight, copies, bias, sums: *sums };
        Ok(ops::fp8_linear(tape, x, &layer, function)?)
    }
}

impl Layer for Linear {
    type Stream = Var;

    fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        Linear::forward(self, tape, x)
    }
}

/// Returns the last component of a dotted name; the enclosing scopes name the others.
#[must_use]
pub fn short(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
