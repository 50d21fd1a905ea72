//! Learned token and position embeddings.

use autograd::{Tape, Var, Weight, ops};
use tensor::Tensor;

use super::within;
use crate::error::Result;
use crate::init::Init;
use crate::parameters::Parameters;

/// GPT-2's deviation for both tables.
const DEVIATION: f32 = 0.02;

/// The sum of a token's and its position's vector.
#[derive(Debug)]
pub struct Embedding {
    tokens: Weight,
    positions: Weight,
}

impl Embedding {
    /// Registers `wte.weight` [vocabulary, width] and `wpe.weight` [context, width].
    pub fn new(parameters: &mut Parameters, vocabulary: usize, context: usize, width: usize) -> Result<Self> {
        let tokens = parameters.create("wte.weight", [vocabulary, width], Init::Normal(DEVIATION))?;
        let positions = parameters.create("wpe.weight", [context, width], Init::Normal(DEVIATION))?;
        Ok(Embedding { tokens, positions })
    }

    /// u32 tokens [batch, time] to [batch, time, width].
    pub fn forward(&self, tape: &Tape, tokens: &Tensor) -> Result<Var> {
        within(tape, "embedding", || Ok(ops::embedding(tape, tokens, &self.tokens, &self.positions)?))
    }
}
