//! The gated feed-forward layers of a Llama block: SwiGLU, GeGLU.

use autograd::ops::GatedFeedForwardWeights;
use autograd::{Tape, Var, ops};
use tensor::ops::Activation;

use super::{Linear, within};
use crate::error::Result;
use crate::init::Init;
use crate::parameters::Parameters;

/// width → activation(gate) · up, of `hidden` values each → width, without biases.
#[derive(Debug)]
pub struct GatedFeedForward {
    weights: GatedFeedForwardWeights,
    activation: Activation,
}

impl GatedFeedForward {
    /// Registers `{prefix}.gate_up_proj.weight` `[2 · hidden, width]`, the rows of the gate before those of
    /// up, and `{prefix}.down_proj.weight` `[width, hidden]`. Errors: out of memory, a name that exists.
    pub fn new(
        parameters: &mut Parameters,
        prefix: &str,
        [width, hidden]: [usize; 2],
        [init, projection]: [Init; 2],
        activation: Activation,
    ) -> Result<Self> {
        let mut linear = |part: &str, inputs, outputs, init| {
            let name = format!("{prefix}.{part}");
            Linear::without_bias(parameters, &name, inputs, outputs, init, Activation::None)
        };
        let gate_up = linear("gate_up_proj", width, 2 * hidden, init)?;
        let down = linear("down_proj", hidden, width, projection)?;
        let weights = GatedFeedForwardWeights {
            gate_up: gate_up.weight,
            down: down.weight,
            adapters: [gate_up.adapter, down.adapter],
        };
        Ok(GatedFeedForward { weights, activation })
    }

    /// Maps `[.., width]` to the same shape. Errors: another shape or type, out of memory.
    pub fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        within(tape, "mlp", || Ok(ops::gated_feed_forward(tape, x, &self.weights, self.activation)?))
    }
}
