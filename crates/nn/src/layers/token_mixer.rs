//! The layer of a block in which tokens interact.

use autograd::{Tape, Var};

use super::{GatedDelta, Layer, RotaryAttention};
use crate::error::Result;

/// The layer of a block in which tokens interact.
#[derive(Debug)]
pub enum TokenMixer {
    /// Attention with rotary positions.
    Attention(Box<RotaryAttention>),
    /// Linear attention by the gated delta rule.
    Delta(Box<GatedDelta>),
}

impl Layer for TokenMixer {
    type Stream = Var;

    /// Maps `[batch, time, width]` to the same shape.
    ///
    /// # Errors
    /// Errors of the layer.
    fn forward(&self, tape: &Tape, x_bld: Var) -> Result<Var> {
        match self {
            TokenMixer::Attention(layer) => layer.forward(tape, x_bld),
            TokenMixer::Delta(layer) => layer.forward(tape, x_bld),
        }
    }
}
