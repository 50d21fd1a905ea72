//! The two-layer perceptron of a transformer block.

use autograd::{Tape, Var};
use tensor::ops::Activation;

use super::Linear;
use crate::error::Result;
use crate::init::Init;
use crate::parameters::Parameters;

/// width → 4 · width with GELU → width.
#[derive(Debug)]
pub struct FeedForward {
    expand: Linear,
    projection: Linear,
}

impl FeedForward {
    /// Registers `{prefix}.mlp_fc` and `{prefix}.mlp_proj`.
    pub fn new(
        parameters: &mut Parameters,
        prefix: &str,
        width: usize,
        init: Init,
        projection: Init,
    ) -> Result<Self> {
        let name = |part: &str| format!("{prefix}.{part}");
        let expand = Linear::new(parameters, &name("mlp_fc"), width, 4 * width, init, Activation::Gelu)?;
        let projection =
            Linear::new(parameters, &name("mlp_proj"), 4 * width, width, projection, Activation::None)?;
        Ok(FeedForward { expand, projection })
    }

    /// [.., width] to the same shape.
    pub fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        let hidden = self.expand.forward(tape, x)?;
        self.projection.forward(tape, hidden)
    }
}
