//! The layer of a block in which tokens interact.

use autograd::{Tape, Var, map, ops};

use super::{GatedDelta, Layer, Multiplier, RotaryAttention, ShortConvolution, StateSpace};
use crate::error::Result;

/// The layer of a block in which tokens interact.
#[derive(Debug)]
pub enum TokenMixer {
    /// Attention with rotary positions.
    Attention(Box<RotaryAttention>),
    /// A short convolution between two gates.
    Convolution(Box<ShortConvolution>),
    /// A layer of Mamba-2.
    StateSpace(Box<StateSpace>),
    /// Attention and a Mamba-2 layer side by side, each multiplied by a factor.
    Both(Box<(RotaryAttention, StateSpace, [Multiplier; 2])>),
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
            TokenMixer::Convolution(layer) => layer.forward(tape, x_bld),
            TokenMixer::StateSpace(layer) => layer.forward(tape, x_bld),
            TokenMixer::Both(layers) => {
                let (attention, states, [of_attention, of_states]) = &**layers;
                let attended = attention.forward(tape, x_bld.clone())?;
                let scanned = states.forward(tape, x_bld)?;
                map(tape, [attended, scanned], |_, [attended, scanned]| {
                    let attended = of_attention.forward(tape, attended)?;
                    Ok(ops::add(tape, attended, of_states.forward(tape, scanned)?)?)
                })
            }
            TokenMixer::Delta(layer) => layer.forward(tape, x_bld),
        }
    }
}
