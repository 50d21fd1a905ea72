//! The feed-forward layers of a GPT-2 block.

use autograd::ops::FeedForwardWeights;
use autograd::{Tape, Var, ops};
use tensor::ops::Activation;

use super::within;
use crate::error::Result;
use crate::init::Init;
use crate::parameters::Parameters;

/// width → 4 · width with an activation → width.
#[derive(Debug)]
pub struct FeedForward {
    weights: FeedForwardWeights,
    activation: Activation,
}

impl FeedForward {
    /// Registers the weights of `{prefix}.mlp_fc` and `{prefix}.mlp_proj`, and with `biases` their biases,
    /// which start at zero. `init` holds the initial values of the first weight, then the second. Errors: out
    /// of memory, a name that exists.
    pub fn new(
        parameters: &mut Parameters,
        prefix: &str,
        width: usize,
        [init, projection]: [Init; 2],
        biases: bool,
        activation: Activation,
    ) -> Result<Self> {
        let hidden = 4 * width;
        let name = |part: &str| format!("{prefix}.{part}");
        let bias = |parameters: &mut Parameters, part: &str, size: usize| {
            let zero = Init::Constant(0.0);
            biases.then(|| parameters.create(&name(part), [size], zero)).transpose()
        };
        let weights = FeedForwardWeights {
            expand: parameters.create(&name("mlp_fc.weight"), [hidden, width], init)?,
            expand_bias: bias(parameters, "mlp_fc.bias", hidden)?,
            project: parameters.create(&name("mlp_proj.weight"), [width, hidden], projection)?,
            project_bias: bias(parameters, "mlp_proj.bias", width)?,
        };
        Ok(FeedForward { weights, activation })
    }

    /// Maps `[.., width]` to the same shape. Errors: another shape or type, out of memory.
    pub fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        within(tape, "mlp", || Ok(ops::feed_forward(tape, x, &self.weights, self.activation)?))
    }
}
