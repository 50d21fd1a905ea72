//! A mixture of experts: a router chooses a few feed-forward layers for each row.

use autograd::ops::{self, ExpertFunction, ExpertWeights, RouterState, RouterWeights};
use autograd::{Tape, Var, Weight, map};
use device::DType;
use tensor::ops::fp8_linear::MULTIPLE;
use tensor::ops::routing::Routing;

use super::adapter::{self, ExpertLayer};
use super::edges::ShardEdges;
use super::{Activation, FeedForward, GatedFeedForward, Layer, Linear, within};
use crate::buffers::ModelBuffer;
use crate::error::{NnError, Result};
use crate::expert_loads::LayerLoads;
use crate::init::Init;
use crate::parameters::Parameters;

/// Sizes and options of a [`Mixture`].
#[derive(Clone, Copy, Debug)]
pub struct MixtureSizes {
    /// How experts are chosen.
    pub routing: Routing,
    /// Hidden width of an expert.
    pub width: usize,
    /// Width of the rows that experts read and write, if linear layers change it before and after them; 0 for
    /// the layer's width.
    pub latent_width: usize,
    /// Hidden width of the shared experts, which all rows use; 0 for none.
    pub shared_width: usize,
    /// Whether the results of the shared experts are multiplied by a sigmoid gate of each row.
    pub shared_gate: bool,
    /// Whether the router has a bias.
    pub router_bias: bool,
    /// Whether the layers of experts have biases.
    pub biases: bool,
    /// Whether a correction is added to the scores for choosing experts.
    pub correction: bool,
}

/// Computes the sum of weight · expert(x) over a row's experts, plus the shared experts.
#[derive(Debug)]
pub struct Mixture {
    router: RouterWeights,
    routing: Routing,
    correction: Option<ModelBuffer>,
    loads: LayerLoads,
    /// The experts of each local shard.
    experts: Vec<ExpertWeights>,
    function: ExpertFunction,
    /// The layers before and after the experts, if experts work on latents.
    latents: Option<[Linear; 2]>,
    shared: Option<SharedExperts>,
    /// The layer that computes the gate of the shared experts, with one output.
    shared_gate: Option<RouterWeights>,
    edges: ShardEdges,
}

/// The experts that all rows use.
#[derive(Debug)]
enum SharedExperts {
    Gated(Box<GatedFeedForward>),
    Plain(FeedForward),
}

/// Names and sizes of a layer's experts.
struct ExpertSizes<'a> {
    prefix: &'a str,
    /// Name of the first layer, without `_proj`.
    first: &'static str,
    /// Names of the parts of the first layer's outputs.
    parts: &'static [&'static str],
    width: usize,
    experts: usize,
    hidden: usize,
    biases: bool,
}

impl Mixture {
    /// Registers the parameters of layer `index` of the model: `{prefix}.router.weight` `[experts, width]`;
    /// with `sizes.correction`, the buffer `{prefix}.router.correction` `[experts]` f32, initially 0; the
    /// experts' gate and up rows `{prefix}.experts.gate_up_proj.weight` `[experts · 2 · hidden, width]`, or
    /// without a gate up rows `{prefix}.experts.up_proj.weight` `[experts · hidden, width]`, and down rows
    /// `{prefix}.experts.down_proj.weight` `[experts · width, hidden]`; biases; and
    /// `{prefix}.shared_experts`, a [`GatedFeedForward`] or [`FeedForward`]. With `sizes.latent_width` the
    /// experts have this width, between `{prefix}.fc1_latent_proj` and `{prefix}.fc2_latent_proj`.
    ///
    /// # Errors
    /// Memory is exhausted, a name exists, or the shards do not divide the hidden width.
    pub(super) fn new(
        parameters: &mut Parameters,
        (index, prefix, width): (usize, &str, usize),
        (sizes, function): (MixtureSizes, ExpertFunction),
        inits: [Init; 2],
    ) -> Result<Self> {
        let MixtureSizes { routing, biases, latent_width: latents, .. } = sizes;
        let experts = routing.experts;
        let linear = |parameters: &mut Parameters, name: &str, [inputs, outputs]: [usize; 2], init| {
            let name = format!("{prefix}.{name}");
            let layer = (latents > 0)
                .then(|| Linear::without_bias(parameters, &name, inputs, outputs, init, Activation::None));
            layer.transpose()
        };
        let before = linear(parameters, "fc1_latent_proj", [width, latents], inits[0])?;
        let router = format!("{prefix}.router");
        let zero = Init::Constant(0.0);
        let correction = sizes.correction.then(|| {
            parameters.create_buffer(&format!("{router}.correction"), [experts], &vec![0.0f32; experts])
        });
        let correction = correction.transpose()?;
        let loads = parameters.expert_loads().add(index, experts, correction.clone());
        let weight = parameters.create_copied(&format!("{router}.weight"), [experts, width], inits[0])?;
        let bias =
            sizes.router_bias.then(|| parameters.create_copied(&format!("{router}.bias"), [experts], zero));
        let bias = bias.transpose()?;
        let shared_gate = (sizes.shared_gate && sizes.shared_width > 0).then(|| {
            let name = format!("{prefix}.shared_expert_gate.weight");
            parameters.create_copied(&name, [1, width], inits[0])
        });
        let shared_gate = shared_gate.transpose()?.map(|weight| RouterWeights { weight, bias: None });
        let (first, parts): (_, &[&str]) = match function {
            ExpertFunction::Gated(_) => ("gate_up", &["gate_proj", "up_proj"]),
            ExpertFunction::Plain(_) => ("up", &["up_proj"]),
        };
        let inputs = if latents > 0 { latents } else { width };
        let of_experts =
            ExpertSizes { prefix, first, parts, width: inputs, experts, hidden: sizes.width, biases };
        let edges = ShardEdges::new(parameters);
        let experts = parameters
            .for_each_shard(edges.is_sharded(), |parameters| Self::experts(parameters, &of_experts, inits))?;
        let in_fp8 = experts.iter().any(|shard| shard.fp8.iter().any(Option::is_some));
        let shared = (sizes.shared_width > 0).then(|| {
            let name = format!("{prefix}.shared_experts");
            let widths = [width, sizes.shared_width];
            SharedExperts::new(parameters, &name, widths, inits, function)
        });
        let shared = shared.transpose()?;
        let after = linear(parameters, "fc2_latent_proj", [latents, width], inits[1])?;
        Ok(Mixture {
            router: RouterWeights { weight, bias },
            routing: Routing { alignment: if in_fp8 { MULTIPLE } else { 1 }, ..routing },
            correction,
            loads,
            experts,
            function,
            latents: before.zip(after).map(<[Linear; 2]>::from),
            shared,
            shared_gate,
            edges,
        })
    }

    /// Registers the experts of one shard.
    fn experts(
        parameters: &mut Parameters,
        sizes: &ExpertSizes<'_>,
        [init, projection]: [Init; 2],
    ) -> Result<ExpertWeights> {
        let ExpertSizes { prefix, first, parts, width, experts, hidden, biases } = *sizes;
        let rows = parts.len() * experts * hidden;
        let zero = Init::Constant(0.0);
        let name = |layer: &str, part: &str| format!("{prefix}.experts.{layer}_proj{part}");
        let [column, row] = [first, "down"].map(|layer| parameters.style(&name(layer, "")));
        let gate_up = parameters.sharding([rows, width], column.as_ref())?;
        let gate_up = parameters.create_matrix(&name(first, ".weight"), gate_up, init)?;
        let gate_up_bias = biases.then(|| {
            let sharding = parameters.sharding([rows], column.as_ref())?;
            parameters.create_sharded(&name(first, ".bias"), sharding, zero)
        });
        let gate_up_bias = gate_up_bias.transpose()?;
        let down = parameters.sharding([experts * width, hidden], row.as_ref())?;
        let down = parameters.create_matrix(&name("down", ".weight"), down, projection)?;
        parameters.stack(&name(first, ".weight"), &vec![hidden; parts.len() * experts]);
        parameters.stack(&name("down", ".weight"), &vec![width; experts]);
        let down_bias =
            biases.then(|| parameters.create_copied(&name("down", ".bias"), [experts * width], zero));
        let down_bias = down_bias.transpose()?;
        let is_first = parameters.shard().is_none_or(|shard| shard == 0);
        let is_sharded = column.is_some();
        let experts_prefix = format!("{prefix}.experts");
        let layer = |parts, [rows, inputs]: [usize; 2], layer: &str, style| ExpertLayer {
            layer: name(layer, ""),
            prefix: &experts_prefix,
            experts,
            parts,
            rows,
            inputs,
            style,
        };
        let gate_up_layer = layer(parts, [hidden, width], first, column.as_ref());
        let down_layer = layer(&["down_proj"], [width, hidden], "down", row.as_ref());
        let adapters = [
            adapter::create_for_experts(parameters, &gate_up_layer)?,
            adapter::create_for_experts(parameters, &down_layer)?,
        ];
        // Adapters multiply in the compute dtype, beside their layers.
        let mut fp8 = |layer: &ExpertLayer<'_>, adapter: &Option<_>, weight: &Weight| match adapter {
            Some(_) => Ok(None),
            None => {
                let rows = weight.shape().rows() / experts;
                parameters.fp8_mut().create_for_experts((&layer.layer, is_sharded), weight, rows)
            }
        };
        let fp8 = [fp8(&gate_up_layer, &adapters[0], &gate_up)?, fp8(&down_layer, &adapters[1], &down)?];
        let is_partial = is_sharded;
        Ok(ExpertWeights { gate_up, down, gate_up_bias, down_bias, adapters, fp8, is_first, is_partial })
    }

    /// Computes the sum of a row's experts, and the result of the shared experts if there are any, of one
    /// shard from its copies of the layer's input and the experts' input.
    fn parts(&self, tape: &Tape, shard: usize, [x_bld, input_blr]: [Var; 2]) -> Result<(Var, Option<Var>)> {
        let experts = &self.experts[shard];
        let choices = within(tape, "router", || {
            let logits_te = ops::router(tape, x_bld.clone(), &self.router)?;
            // All shards have the same rows; the first local one counts them.
            let loads_e = if shard == 0 { self.loads.counts(tape)? } else { None };
            let state = RouterState {
                correction: self.correction.as_ref().map(ModelBuffer::tensor),
                loads: loads_e.as_ref(),
                balances: experts.is_first,
            };
            Ok(ops::routing(tape, logits_te, &self.routing, state)?)
        })?;
        let gate_t = self.shared_gate.as_ref().map(|weights| {
            within(tape, "shared_expert_gate", || Ok(ops::router(tape, x_bld.clone(), weights)?))
        });
        let gate_t = gate_t.transpose()?;
        let shared_input = self.shared.as_ref().map(|shared| (shared, x_bld));
        let routed_blr =
            within(tape, "experts", || Ok(ops::experts(tape, input_blr, choices, experts, self.function)?))?;
        let Some((shared, x_bld)) = shared_input else { return Ok((routed_blr, None)) };
        let shared_bld = within(tape, "shared_experts", || shared.forward_shard(tape, shard, x_bld))?;
        let shared_bld = match gate_t {
            Some(gate_t) => within(tape, "shared_expert_gate", || gated(tape, shared_bld, gate_t))?,
            None => shared_bld,
        };
        Ok((routed_blr, Some(shared_bld)))
    }

    /// Computes the result of one shard from its copy of the input.
    fn forward_shard(&self, tape: &Tape, shard: usize, x_bld: Var) -> Result<Var> {
        within(tape, "mlp", || {
            let (routed_bld, shared_bld) = self.parts(tape, shard, [x_bld.clone(), x_bld])?;
            match shared_bld {
                Some(shared_bld) => Ok(ops::add(tape, routed_bld, shared_bld)?),
                None => Ok(routed_bld),
            }
        })
    }

    /// Computes the layer's result with experts between the layers `before` and `after`.
    fn forward_latents(&self, tape: &Tape, [before, after]: &[Linear; 2], x_bld: Var) -> Result<Var> {
        let missing = || NnError::Sizes("a mixture lacks a part of its results".to_owned());
        let dtype = x_bld.tensor().dtype();
        let latents_blr = before.forward(tape, x_bld.clone())?;
        let inputs = within(tape, "experts", || self.edges.enter_all(tape, vec![x_bld, latents_blr]))?;
        let inputs = <[Var; 2]>::try_from(inputs).map_err(|_| missing())?;
        let parts = map(tape, inputs, |block, inputs| {
            let (routed_blr, shared_bld) = self.parts(tape, block.shard, inputs)?;
            Ok::<_, NnError>(std::iter::once(routed_blr).chain(shared_bld).collect::<Vec<_>>())
        })?;
        let parts = within(tape, "experts", || self.edges.leave_all(tape, parts, dtype))?;
        let mut parts = parts.into_iter();
        let routed_bld = after.forward(tape, parts.next().ok_or_else(missing)?)?;
        match parts.next() {
            Some(shared_bld) => Ok(ops::add(tape, routed_bld, shared_bld)?),
            None => Ok(routed_bld),
        }
    }
}

impl SharedExperts {
    fn new(
        parameters: &mut Parameters,
        prefix: &str,
        widths: [usize; 2],
        inits: [Init; 2],
        function: ExpertFunction,
    ) -> Result<Self> {
        match function {
            ExpertFunction::Gated(gate) => {
                let layers = GatedFeedForward::new(parameters, prefix, widths, inits, gate, false)?;
                Ok(SharedExperts::Gated(Box::new(layers)))
            }
            ExpertFunction::Plain(activation) => {
                let names = ["up_proj", "down_proj"].map(|part| format!("{prefix}.{part}"));
                let layers = FeedForward::new(parameters, names, widths, inits, (false, activation))?;
                Ok(SharedExperts::Plain(layers))
            }
        }
    }

    fn forward_shard(&self, tape: &Tape, shard: usize, x_bld: Var) -> Result<Var> {
        match self {
            SharedExperts::Gated(layers) => layers.forward_shard(tape, shard, x_bld),
            SharedExperts::Plain(layers) => layers.forward_shard(tape, shard, x_bld),
        }
    }
}

impl Layer for Mixture {
    type Stream = Var;

    /// Maps `[.., width]` to the same shape.
    ///
    /// # Errors
    /// The shape or dtype differs, memory is exhausted, or a collective failed.
    fn forward(&self, tape: &Tape, x_bld: Var) -> Result<Var> {
        if let Some(latents) = &self.latents {
            return within(tape, "mlp", || self.forward_latents(tape, latents, x_bld));
        }
        let dtype = x_bld.tensor().dtype();
        let x_bld = within(tape, "experts", || self.edges.enter(tape, x_bld))?;
        let y_bld = map(tape, [x_bld], |block, [x_bld]| self.forward_shard(tape, block.shard, x_bld))?;
        within(tape, "experts", || self.edges.leave(tape, y_bld, None, dtype))
    }
}

/// Multiplies each row by the sigmoid of its gate, `[rows, 1]` f32.
fn gated(tape: &Tape, x_bld: Var, gate_t: Var) -> Result<Var> {
    let [batch, time] = [x_bld.tensor().shape().dims()[0], x_bld.tensor().shape().dims()[1]];
    let gate_bl = ops::reshape(tape, gate_t, [batch, time, 1])?;
    let gate_bl = match x_bld.tensor().dtype() {
        DType::F32 => gate_bl,
        dtype => ops::cast(tape, gate_bl, dtype)?,
    };
    Ok(ops::sigmoid_gate(tape, x_bld, gate_bl)?)
}

/// The feed-forward layers of a block.
#[derive(Debug)]
pub enum BlockFeedForward {
    /// The same layers for all rows.
    Dense(Box<GatedFeedForward>),
    /// The same layers for all rows, without a gate.
    Plain(Box<FeedForward>),
    /// A mixture of experts.
    Mixture(Box<Mixture>),
}

impl Layer for BlockFeedForward {
    type Stream = Var;

    /// Maps `[.., width]` to the same shape.
    ///
    /// # Errors
    /// The shape or dtype differs, or memory is exhausted.
    fn forward(&self, tape: &Tape, x_bld: Var) -> Result<Var> {
        match self {
            BlockFeedForward::Dense(layers) => layers.forward(tape, x_bld),
            BlockFeedForward::Plain(layers) => layers.forward(tape, x_bld),
            BlockFeedForward::Mixture(layers) => layers.forward(tape, x_bld),
        }
    }
}
