//! The feed-forward layers of a GPT-2 block.

use autograd::ops::FeedForwardWeights;
use autograd::{Tape, Var, ops};
use tensor::ops::Activation;

use super::within;
use crate::error::Result;
use crate::init::Init;
use crate::parameters::Parameters;

/// width → 4 · width with GELU → width.
#[derive(Debug)]
pub struct FeedForward {
    weights: FeedForwardWeights,
}

impl FeedForward {
    /// Registers weight and bias of `{prefix}.mlp_fc` and `{prefix}.mlp_proj`; biases start at zero.
    /// Errors: out of memory, a name that exists.
    pub fn new(
        parameters: &mut Parameters,
        prefix: &str,
        width: usize,
        init: Init,
        projection: Init,
    ) -> Result<Self> {
        let hidden = 4 * width;
        let zero = Init::Constant(0.0);
        let name = |part: &str| format!("{prefix}.{part}");
        let weights = FeedForwardWeights {
            expand: parameters.create(&name("mlp_fc.weight"), [hidden, width], init)?,
            expand_bias: Some(parameters.create(&name("mlp_fc.bias"), [hidden], zero)?),
            project: parameters.create(&name("mlp_proj.weight"), [width, hidden], projection)?,
            project_bias: Some(parameters.create(&name("mlp_proj.bias"), [width], zero)?),
        };
        Ok(FeedForward { weights })
    }

    /// `[.., width]` to the same shape. Errors: another shape or type, out of memory.
    pub fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        within(tape, "mlp", || Ok(ops::feed_forward(tape, x, &self.weights, Activation::Gelu)?))
    }
}
