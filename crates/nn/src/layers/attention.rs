//! Multi-head causal self-attention.

use autograd::{Tape, Var, ops};
use tensor::ops::Activation;

use super::{Linear, within};
use crate::error::Result;
use crate::init::Init;
use crate::parameters::Parameters;

/// Queries, keys and values from one product, attention over each head, and a projection.
#[derive(Debug)]
pub struct CausalSelfAttention {
    qkv: Linear,
    projection: Linear,
    heads: usize,
}

impl CausalSelfAttention {
    /// Registers `{prefix}.attn_qkv` and `{prefix}.attn_proj`; `width` is a multiple of `heads`.
    pub fn new(
        parameters: &mut Parameters,
        prefix: &str,
        width: usize,
        heads: usize,
        init: Init,
        projection: Init,
    ) -> Result<Self> {
        let name = |part: &str| format!("{prefix}.{part}");
        let qkv = Linear::new(parameters, &name("attn_qkv"), width, 3 * width, init, Activation::None)?;
        let projection =
            Linear::new(parameters, &name("attn_proj"), width, width, projection, Activation::None)?;
        Ok(CausalSelfAttention { qkv, projection, heads })
    }

    /// [batch, time, width] to the same shape.
    pub fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        let qkv = self.qkv.forward(tape, x)?;
        let mixed = within(tape, "attention", || Ok(ops::attention(tape, qkv, self.heads)?))?;
        self.projection.forward(tape, mixed)
    }
}
