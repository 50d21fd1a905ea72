//! A mixture of experts: gated feed-forward layers of which each row uses a few, chosen by a router.

use autograd::ops::{self, ExpertWeights, RouterState, RouterWeights, SharedWeight};
use autograd::{Tape, Var, Weight};
use collective::Axis;
use tensor::Shape;
use tensor::ops::fp8_linear::MULTIPLE;
use tensor::ops::gate::Gate;
use tensor::ops::routing::Routing;

use super::adapter::{self, ExpertLayer};
use super::divided::DividedLayer;
use super::{GatedFeedForward, Layer, LinearCut, within};
use crate::buffers::ModelBuffer;
use crate::error::Result;
use crate::expert_loads::LayerLoads;
use crate::init::Init;
use crate::parameters::Parameters;
use crate::sharding::Sharding;

/// Sizes and options of a [`Mixture`].
#[derive(Clone, Copy, Debug)]
pub struct MixtureSizes {
    /// The choice of experts.
    pub routing: Routing,
    /// Hidden width of an expert.
    pub width: usize,
    /// Hidden width of the experts that all rows use; 0: there are none.
    pub shared_width: usize,
    /// Whether the router has a bias.
    pub router_bias: bool,
    /// Whether the layers of experts have biases.
    pub biases: bool,
    /// Whether scores are corrected where experts are chosen.
    pub correction: bool,
}

/// The state of a mixture that is no parameter, of which its lanes have clones.
#[derive(Clone, Debug)]
pub(super) struct MixtureState {
    correction: Option<ModelBuffer>,
    loads: LayerLoads,
}

/// The sum over a row's experts of weight · expert(x), plus the shared experts.
#[derive(Debug)]
pub struct Mixture {
    router: RouterWeights,
    routing: Routing,
    correction: Option<ModelBuffer>,
    /// The loads to count, which the first lane that is here does.
    loads: Option<LayerLoads>,
    experts: ExpertWeights,
    gate: Gate,
    shared: Option<GatedFeedForward>,
}

impl MixtureState {
    /// Registers the loads of layer `index`, and with `sizes.correction` the buffer
    /// `{prefix}.router.correction`, `[experts]` f32, at first 0.
    ///
    /// # Errors
    /// Out of memory, a name that exists.
    pub(super) fn new(
        parameters: &mut Parameters,
        (index, prefix): (usize, &str),
        sizes: MixtureSizes,
    ) -> Result<Self> {
        let experts = sizes.routing.experts;
        let mut create = || {
            let zeros = vec![0.0f32; experts];
            parameters.create_buffer(&format!("{prefix}.router.correction"), [experts], &zeros)
        };
        let correction = sizes.correction.then(&mut create).transpose()?;
        let loads = parameters.expert_loads().add(index, experts, correction.clone());
        Ok(MixtureState { correction, loads })
    }
}

impl Mixture {
    /// Registers a lane of the layers: `{prefix}.router.weight` `[experts, width]`; for each expert the rows
    /// of gate and up in `{prefix}.experts.gate_up_proj.weight` `[experts · 2 · hidden, width]` and those of
    /// `{prefix}.experts.down_proj.weight` `[experts · width, hidden]`; biases; and
    /// `{prefix}.shared_experts`, a [`GatedFeedForward`].
    ///
    /// # Errors
    /// Out of memory, a name that exists; a hidden width that lanes do not divide.
    pub(super) fn new(
        parameters: &mut Parameters,
        (prefix, width): (&str, usize),
        (sizes, gate): (MixtureSizes, Gate),
        [init, projection]: [Init; 2],
        (state, is_first_here): (MixtureState, bool),
    ) -> Result<Self> {
        let (experts, hidden) = (sizes.routing.experts, sizes.width);
        let router = format!("{prefix}.router");
        let weight = shared(parameters, &format!("{router}.weight"), [experts, width], init)?;
        let mut bias = || shared(parameters, &format!("{router}.bias"), [experts], Init::Constant(0.0));
        let bias = sizes.router_bias.then(&mut bias).transpose()?;
        let experts =
            Self::experts(parameters, (prefix, width), (experts, hidden, sizes.biases), [init, projection])?;
        let alignment = if experts.fp8.iter().any(Option::is_some) { MULTIPLE } else { 1 };
        let mut shared = || {
            let (name, widths) = (format!("{prefix}.shared_experts"), [width, sizes.shared_width]);
            GatedFeedForward::new(parameters, &name, widths, [init, projection], gate, false)
        };
        let shared = (sizes.shared_width > 0).then(&mut shared).transpose()?;
        let MixtureState { correction, loads } = state;
        Ok(Mixture {
            router: RouterWeights { weight, bias },
            routing: Routing { alignment, ..sizes.routing },
            correction,
            loads: is_first_here.then_some(loads),
            experts,
            gate,
            shared,
        })
    }

    fn experts(
        parameters: &mut Parameters,
        (prefix, width): (&str, usize),
        (experts, hidden, biases): (usize, usize, bool),
        [init, projection]: [Init; 2],
    ) -> Result<ExpertWeights> {
        let lanes = parameters.lanes();
        // Of each expert, the rows of the gate and those of up.
        let groups = vec![hidden; 2 * experts];
        let divided =
            |shape: Shape| Sharding::replicated(shape).divided_in_groups(Axis::Tensor, 0, lanes.all, &groups);
        let rows = 2 * experts * hidden;
        let name = |layer: &str, part: &str| format!("{prefix}.experts.{layer}_proj.{part}");
        let zero = Init::Constant(0.0);
        let gate_up = divided([rows, width].into())?;
        let gate_up = parameters.create_matrix(&name("gate_up", "weight"), gate_up, init)?;
        let gate_up_bias = biases.then(|| divided([rows].into())).transpose()?;
        let mut bias = |sharding| parameters.create_sharded(&name("gate_up", "bias"), sharding, zero);
        let gate_up_bias = gate_up_bias.map(&mut bias).transpose()?;
        let down = Sharding::replicated([experts * width, hidden]).divided(Axis::Tensor, 1, lanes.all)?;
        let down = parameters.create_matrix(&name("down", "weight"), down, projection)?;
        let mut bias = || shared(parameters, &name("down", "bias"), [experts * width], zero);
        let down_bias = biases.then(&mut bias).transpose()?;
        let is_first = parameters.lane().is_none_or(|lane| lane == 0);
        let is_lane = lanes.is_divided();
        let prefix = format!("{prefix}.experts");
        let of = |parts, rows, inputs, name: &str, cut| ExpertLayer {
            layer: format!("{prefix}.{name}"),
            prefix: &prefix,
            experts,
            parts,
            rows,
            inputs,
            cut,
        };
        let layers = [
            of(&["gate_proj", "up_proj"], hidden, width, "gate_up_proj", LinearCut::Outputs(&[])),
            of(&["down_proj"], width, hidden, "down_proj", LinearCut::Inputs),
        ];
        let [gate_up_adapter, down_adapter] = &layers;
        let adapters = [
            adapter::create_for_experts(parameters, gate_up_adapter)?,
            adapter::create_for_experts(parameters, down_adapter)?,
        ];
        // Adapters multiply beside their layers in the compute type.
        let mut fp8 = |layer: &ExpertLayer<'_>, adapter: &Option<_>, weight: &Weight| match adapter {
            Some(_) => Ok(None),
            None => {
                let rows = weight.shape().rows() / experts;
                parameters.fp8_mut().create_for_experts((&layer.layer, is_lane), weight, rows)
            }
        };
        let fp8 = [fp8(gate_up_adapter, &adapters[0], &gate_up)?, fp8(down_adapter, &adapters[1], &down)?];
        Ok(ExpertWeights { gate_up, down, gate_up_bias, down_bias, adapters, fp8, is_first, is_lane })
    }
}

/// Registers a parameter that all lanes use.
fn shared(
    parameters: &mut Parameters,
    name: &str,
    shape: impl Into<Shape>,
    init: Init,
) -> Result<SharedWeight> {
    if !parameters.lanes().is_divided() {
        return Ok(SharedWeight { weight: parameters.create(name, shape, init)?, share: None });
    }
    let (weight, share) = parameters.create_for_all_lanes(name, shape, init)?;
    Ok(SharedWeight { weight, share: Some(share) })
}

impl Layer for Mixture {
    type Stream = Var;

    /// Maps `[.., width]` to the same shape.
    ///
    /// # Errors
    /// Another shape or type, out of memory.
    fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        within(tape, "mlp", || {
            let choices = within(tape, "router", || {
                let logits = ops::router(tape, x.clone(), &self.router)?;
                let loads = self.loads.as_ref().map(|loads| loads.counts(tape)).transpose()?.flatten();
                let state = RouterState {
                    correction: self.correction.as_ref().map(ModelBuffer::tensor),
                    loads: loads.as_ref(),
                    balances: self.experts.is_first,
                };
                Ok(ops::routing(tape, logits, &self.routing, state)?)
            })?;
            let Some(shared) = &self.shared else {
                return within(tape, "experts", || {
                    Ok(ops::experts(tape, x, choices, &self.experts, self.gate)?)
                });
            };
            let routed = within(tape, "experts", || {
                Ok(ops::experts(tape, x.clone(), choices, &self.experts, self.gate)?)
            })?;
            let shared = within(tape, "shared_experts", || shared.forward(tape, x))?;
            Ok(ops::add(tape, routed, shared)?)
        })
    }
}

impl DividedLayer for Mixture {}

/// The feed-forward layers of a block: those that all rows use, or a mixture of experts.
#[derive(Debug)]
pub enum BlockFeedForward {
    /// The same layers for all rows.
    Dense(GatedFeedForward),
    /// A mixture of experts.
    Mixture(Box<Mixture>),
}

impl Layer for BlockFeedForward {
    type Stream = Var;

    /// Maps `[.., width]` to the same shape.
    ///
    /// # Errors
    /// Another shape or type, out of memory.
    fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        match self {
            BlockFeedForward::Dense(layers) => layers.forward(tape, x),
            BlockFeedForward::Mixture(layers) => layers.forward(tape, x),
        }
    }
}

impl DividedLayer for BlockFeedForward {}
