//! Token embedding, with or without learned positions.

use autograd::{Tape, Var, Weight, ops};
use tensor::Tensor;

use super::within;
use crate::error::Result;
use crate::init::Init;
use crate::parameters::Parameters;

/// The vector of each token, plus the vector of its position where positions are learned.
#[derive(Debug)]
pub struct Embedding {
    tokens: Weight,
    positions: Option<Weight>,
}

impl Embedding {
    /// Registers `name`, of shape `[vocabulary, width]`. Errors: out of memory, a name that exists.
    pub fn new(
        parameters: &mut Parameters,
        name: &str,
        [vocabulary, width]: [usize; 2],
        init: Init,
    ) -> Result<Self> {
        Ok(Embedding { tokens: parameters.create(name, [vocabulary, width], init)?, positions: None })
    }

    /// Registers `name`, of shape `[context, width]`, as learned positions. Errors: out of memory, a name
    /// that exists.
    pub fn with_positions(
        self,
        parameters: &mut Parameters,
        name: &str,
        context: usize,
        init: Init,
    ) -> Result<Self> {
        let width = self.tokens.tensor().shape().columns();
        Ok(Embedding { positions: Some(parameters.create(name, [context, width], init)?), ..self })
    }

    /// u32 tokens `[batch, time]` to `[batch, time, width]`. Errors: a token outside the table, more
    /// positions than were registered, out of memory.
    pub fn forward(&self, tape: &Tape, tokens: &Tensor) -> Result<Var> {
        within(tape, "embedding", || Ok(ops::embedding(tape, tokens, &self.tokens, self.positions.as_ref())?))
    }
}
