//! Creation of linear layers: registers their parameters, sharded if the family's placement table lists them.

use autograd::ops::PartialSums;
use tensor::ops::Activation;

use super::super::adapter;
use super::super::edges::ShardEdges;
use super::super::row_adapter::RowAdapter;
use super::{Linear, LinearShard};
use crate::error::{NnError, Result};
use crate::fp8::LinearRole;
use crate::init::Init;
use crate::parameters::{ParameterRole, Parameters};
use crate::placements::ParallelStyle;

/// Sizes and initial values of a layer.
struct Sizes {
    inputs: usize,
    outputs: usize,
    init: Init,
    /// Initial values of the bias, if any.
    bias: Option<Init>,
    activation: Activation,
    role: LinearRole,
}

impl Linear {
    /// Registers `{name}.weight`, `{name}.bias`, and an adapter if the configuration asks for one. A uniform
    /// `init` also initialises the bias, as in PyTorch; otherwise the bias starts at zero, as in GPT-2.
    ///
    /// # Errors
    /// Memory is exhausted, a name exists, or the shards do not divide a dimension.
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
            _ => Init::Constant(0.0),
        };
        let bias = Some(bias);
        let role = LinearRole::Inner;
        Self::create(parameters, name, &Sizes { inputs, outputs, init, bias, activation, role })
    }

    /// Registers the layer that computes the model's output; it has a bias if `bias_init` is present.
    pub fn head(
        parameters: &mut Parameters,
        name: &str,
        [inputs, outputs]: [usize; 2],
        init: Init,
        bias_init: Option<Init>,
    ) -> Result<Self> {
        let bias = bias_init;
        let activation = Activation::None;
        let role = LinearRole::Head;
        Self::create(parameters, name, &Sizes { inputs, outputs, init, bias, activation, role })
    }

    /// Registers a layer without a bias.
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

    /// Registers a layer; with `has_bias`, it has a bias initialised to zero.
    pub(in crate::layers) fn optional_bias(
        parameters: &mut Parameters,
        name: &str,
        [inputs, outputs]: [usize; 2],
        init: Init,
        (has_bias, activation): (bool, Activation),
    ) -> Result<Self> {
        let bias = has_bias.then_some(Init::Constant(0.0));
        let role = LinearRole::Inner;
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

    /// Creates a layer without bias that uses the existing parameter `weight`, as a tied output head does.
    ///
    /// # Errors
    /// There is no such weight.
    pub fn tied(parameters: &mut Parameters, name: &str, weight: &str) -> Result<Self> {
        // A table of embeddings is listed by its own name, a head by that of its layer.
        let layer = weight.strip_suffix(".weight").unwrap_or(weight);
        let style = parameters.style(weight).or_else(|| parameters.style(layer));
        let sums = LinearShard::sums(style.as_ref());
        let activation = Activation::None;
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
            LinearRole::Head => parameters.with_role(ParameterRole::Head, |parameters| {
                parameters.create_sharded(&weight_name, sharding, init)
            })?,
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
        // A whole layer on sharded rows multiplies in the compute dtype.
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

    /// Returns the results of a shard that are partial sums.
    const fn sums(style: Option<&ParallelStyle>) -> PartialSums {
        PartialSums {
            output: matches!(style, Some(ParallelStyle::Row)),
            input_gradient: matches!(style, Some(ParallelStyle::Column(_))),
        }
    }
}
