//! The attention branch of Llama and its relatives, whose heads may share latents.

use autograd::{Tape, Var};

use super::latent_qkv::QkvInput;
use super::latents::Latents;
use super::stack::each_piece;
use super::{Divided, Layer, RotaryAttention};
use crate::error::Result;

/// Attention that lanes may divide, after latents that all lanes share, if there are some.
#[derive(Debug)]
pub struct LlamaAttention {
    pub(super) latents: Option<Latents>,
    pub(super) heads: Divided<RotaryAttention>,
}

impl Layer for LlamaAttention {
    type Stream = Var;

    /// Maps `[batch, time, width]` to the same shape.
    ///
    /// # Errors
    /// Operands of a wrong shape, out of memory, a failed collective.
    fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        match (&self.latents, self.heads.whole()) {
            (None, _) => self.heads.forward(tape, x),
            (Some(latents), Some(heads)) => {
                heads.forward_input(tape, QkvInput::Parts(latents.parts(tape, x)?))
            }
            (Some(latents), None) => {
                let joined = latents.joined(tape, x)?;
                self.heads.forward(tape, joined)
            }
        }
    }

    fn forward_pieces(&self, tape: &Tape, x: Vec<Var>) -> Result<Vec<Var>> {
        match (&self.latents, self.heads.whole()) {
            (None, _) => self.heads.forward_pieces(tape, x),
            (Some(latents), Some(heads)) => {
                let parts = |x| Ok(QkvInput::Parts(latents.parts(tape, x)?));
                let parts = each_piece(tape, x, parts)?;
                heads.forward_inputs(tape, parts)
            }
            (Some(latents), None) => {
                let joined = each_piece(tape, x, |x| latents.joined(tape, x))?;
                self.heads.forward_pieces(tape, joined)
            }
        }
    }
}
