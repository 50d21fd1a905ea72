//! The gated feed-forward layers of a Llama block: SwiGLU, GeGLU.

use autograd::ops::{Fp8Input, Fp8Linear, GatedFeedForwardWeights};
use autograd::{Tape, Var, ops};
use tensor::ops::Activation;
use tensor::ops::gate::Gate;

use super::divided::DividedLayer;
use super::{Layer, Linear, LinearCut, within};
use crate::error::{NnError, Result};
use crate::init::Init;
use crate::parameters::Parameters;

/// width → activation(gate) · up, of `hidden` values each, with or without bounds → width.
#[derive(Debug)]
pub struct GatedFeedForward {
    layers: Layers,
    gate: Gate,
}

#[derive(Debug)]
enum Layers {
    /// One operator for all layers.
    Fused(Box<GatedFeedForwardWeights>),
    /// Two operators, of which the second computes the gate of its input, which it stores in FP8 only.
    Fp8(Box<(Linear, Fp8Linear)>),
}

impl GatedFeedForward {
    /// Registers `{prefix}.gate_up_proj.weight` `[2 · hidden, width]`, the rows of the gate before those of
    /// up, and `{prefix}.down_proj.weight` `[width, hidden]`; with `biases` also those of both.
    ///
    /// # Errors
    /// Out of memory, a name that exists.
    pub fn new(
        parameters: &mut Parameters,
        prefix: &str,
        [width, hidden]: [usize; 2],
        [init, projection]: [Init; 2],
        gate: impl Into<Gate>,
        biases: bool,
    ) -> Result<Self> {
        let gate = gate.into();
        let mut linear = |part: &str, cut, init| {
            Linear::lane(parameters, &format!("{prefix}.{part}"), cut, init, biases, Activation::None)
        };
        let groups = [hidden, hidden];
        let gate_up = linear("gate_up_proj", ([width, 2 * hidden], LinearCut::Outputs(&groups)), init)?;
        let down = linear("down_proj", ([hidden, width], LinearCut::Inputs), projection)?;
        let layers = match (gate_up.in_fp8(), down.in_fp8()) {
            (_, Some(_)) if gate.clamp.is_some() => {
                let text = format!("{prefix}.down_proj is in FP8, which has no bounds of its gate yet");
                return Err(NnError::Sizes(text));
            }
            (_, Some(down)) => Layers::Fp8(Box::new((gate_up, down))),
            (Some(_), None) => {
                let text = format!("{prefix}.gate_up_proj is in FP8 only together with {prefix}.down_proj");
                return Err(NnError::Sizes(text));
            }
            (None, None) => Layers::Fused(Box::new(GatedFeedForwardWeights {
                gate_up: gate_up.weight,
                down: down.weight,
                biases: [gate_up.bias, down.bias],
                adapters: [gate_up.adapter, down.adapter],
                is_lane: parameters.lanes().is_divided(),
            })),
        };
        Ok(GatedFeedForward { layers, gate })
    }
}

impl DividedLayer for GatedFeedForward {}

impl Layer for GatedFeedForward {
    type Stream = Var;

    /// Maps `[.., width]` to the same shape.
    ///
    /// # Errors
    /// Another shape or type, out of memory.
    fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        within(tape, "mlp", || match &self.layers {
            Layers::Fused(weights) => Ok(ops::gated_feed_forward(tape, x, weights, self.gate)?),
            Layers::Fp8(layers) => {
                let (gate_up, down) = &**layers;
                let x = gate_up.forward(tape, x)?;
                within(tape, "down_proj", || {
                    Ok(ops::fp8_linear(tape, x, down, Fp8Input::Gated(self.gate.activation))?)
                })
            }
        })
    }
}
