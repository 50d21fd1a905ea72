//! The gated feed-forward layers of a Llama block: SwiGLU, GeGLU.

use autograd::ops::{Fp8Input, GatedFeedForwardWeights};
use autograd::{Tape, Var, map, ops};
use tensor::ops::Activation;
use tensor::ops::gate::Gate;

use super::{Layer, Linear, Multiplier, within};
use crate::error::{NnError, Result};
use crate::init::Init;
use crate::parameters::Parameters;

/// A gated feed-forward layer: width → activation(gate) · up, with `hidden` values each → width.
#[derive(Debug)]
pub struct GatedFeedForward {
    gate_up: Linear,
    down: Linear,
    /// Weights of both layers by local shard, for a fused operator. Empty in FP8, where the second layer
    /// computes the gate itself and stores only FP8 codes of it.
    fused: Vec<GatedFeedForwardWeights>,
    gate: Gate,
    /// Factor of the gate before its activation.
    gate_scale: Multiplier,
}

impl GatedFeedForward {
    /// Registers `{prefix}.gate_up_proj.weight` `[2 · hidden, width]`, first the gate's rows, then up's, and
    /// `{prefix}.down_proj.weight` `[width, hidden]`; with `biases`, also their biases.
    ///
    /// # Errors
    /// Memory is exhausted, or a name exists.
    pub fn new(
        parameters: &mut Parameters,
        prefix: &str,
        [width, hidden]: [usize; 2],
        [init, projection]: [Init; 2],
        gate: impl Into<Gate>,
        biases: bool,
    ) -> Result<Self> {
        let gate = gate.into();
        let mut linear = |part: &str, sizes, init| {
            let name = format!("{prefix}.{part}");
            Linear::optional_bias(parameters, &name, sizes, init, (biases, Activation::None))
        };
        let gate_up = linear("gate_up_proj", [width, 2 * hidden], init)?;
        let down = linear("down_proj", [hidden, width], projection)?;
        let refused = |text: &str| Err(NnError::Sizes(format!("{prefix}.{text}")));
        let fused = match (gate_up.is_in_fp8(), down.is_in_fp8()) {
            (_, true) if gate.clamp.is_some() => {
                return refused("down_proj is in FP8, which has no bounds of its gate yet");
            }
            (true, false) => {
                let text = format!("gate_up_proj is in FP8 only together with {prefix}.down_proj");
                return refused(&text);
            }
            (_, true) => Vec::new(),
            (false, false) => fused_weights(&gate_up, &down),
        };
        Ok(GatedFeedForward { gate_up, down, fused, gate, gate_scale: Multiplier::ONE })
    }

    /// Multiplies the gate by `scale` before its activation.
    ///
    /// # Errors
    /// The layers are in FP8 or the gate is bounded, for which there is no such factor.
    pub(super) fn with_gate_scale(self, scale: f64) -> Result<Self> {
        let gate_scale = Multiplier::new(scale);
        if gate_scale != Multiplier::ONE && (self.down.is_in_fp8() || self.gate.clamp.is_some()) {
            return Err(NnError::Sizes("gates with a factor are neither in FP8 nor bounded".to_owned()));
        }
        Ok(GatedFeedForward { gate_scale, ..self })
    }

    /// Computes the result of one shard whose gate has a factor.
    fn forward_scaled(&self, tape: &Tape, shard: usize, x_bld: Var) -> Result<Var> {
        let pair = self.gate_up.forward_shard(tape, shard, x_bld)?;
        let hidden = pair.tensor().shape().columns() / 2;
        let axis = pair.tensor().shape().dims().len() - 1;
        let mut parts = ops::split(tape, pair, axis, &[hidden; 2])?.into_iter();
        let (Some(gate), Some(up)) = (parts.next(), parts.next()) else {
            return Err(NnError::Sizes("a gated layer has two groups of columns".to_owned()));
        };
        let gate = ops::activation(tape, self.gate_scale.forward(tape, gate)?, self.gate.activation)?;
        self.down.forward_shard(tape, shard, ops::multiply(tape, gate, up)?)
    }

    /// Computes the result of one shard from its copy of the input.
    ///
    /// # Errors
    /// The shape or dtype differs, or memory is exhausted.
    pub(super) fn forward_shard(&self, tape: &Tape, shard: usize, x_bld: Var) -> Result<Var> {
        within(tape, "mlp", || match self.fused.get(shard) {
            _ if self.gate_scale != Multiplier::ONE => self.forward_scaled(tape, shard, x_bld),
            Some(weights) => Ok(ops::gated_feed_forward(tape, x_bld, weights, self.gate)?),
            None => {
                let hidden_blf = self.gate_up.forward_shard(tape, shard, x_bld)?;
                let function = Fp8Input::Gated(self.gate.activation);
                self.down.forward_shard_fp8(tape, shard, hidden_blf, function)
            }
        })
    }
}

/// Returns the weights of both layers by shard.
fn fused_weights(gate_up: &Linear, down: &Linear) -> Vec<GatedFeedForwardWeights> {
    let is_partial = gate_up.edges().is_sharded();
    let pairs = gate_up.shards.iter().zip(&down.shards);
    let weights = pairs.map(|(gate_up, down)| GatedFeedForwardWeights {
        gate_up: gate_up.weight.clone(),
        down: down.weight.clone(),
        biases: [gate_up.bias.clone(), down.bias.clone()],
        adapters: [gate_up.adapter.clone(), down.adapter.clone()],
        is_partial,
    });
    weights.collect()
}

impl Layer for GatedFeedForward {
    type Stream = Var;

    /// Maps `[.., width]` to the same shape.
    ///
    /// # Errors
    /// The shape or dtype differs, memory is exhausted, or a collective failed.
    fn forward(&self, tape: &Tape, x_bld: Var) -> Result<Var> {
        let dtype = x_bld.tensor().dtype();
        let x_bld = self.gate_up.enter(tape, x_bld)?;
        let y_bld = map(tape, [x_bld], |block, [x_bld]| self.forward_shard(tape, block.shard, x_bld))?;
        self.down.leave(tape, y_bld, dtype)
    }
}
