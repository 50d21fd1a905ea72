//! Causal self-attention between linear projections.

use autograd::ops::AttentionMeasures;
use autograd::{Tape, Var, ops};
use tensor::ops::attention::{Heads, Qkv};

use super::{Dropout, Layer, Linear, within};
use crate::error::Result;

/// Queries, keys and values by one linear layer or by three, attention over each head, and an output
/// projection.
#[derive(Debug)]
pub struct CausalSelfAttention {
    qkv: Qkv<Linear>,
    projection: Linear,
    heads: Heads,
    dropout: Dropout,
}

impl CausalSelfAttention {
    /// Returns the layer. `qkv` gives the columns that `heads` states, and `projection` takes `heads.query ·
    /// heads.width`.
    pub fn new(qkv: Qkv<Linear>, projection: Linear, heads: Heads) -> Self {
        CausalSelfAttention { qkv, projection, heads, dropout: Dropout::none() }
    }

    /// Returns the same layer with dropout of attention weights in training.
    #[must_use]
    pub fn dropping(self, dropout: Dropout) -> Self {
        CausalSelfAttention { dropout, ..self }
    }
}

impl Layer for CausalSelfAttention {
    type Stream = Var;

    /// Maps `[batch, time, width]` to the same shape.
    ///
    /// # Errors
    /// Operands of a wrong shape, out of memory.
    fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        let qkv = match &self.qkv {
            Qkv::Packed(layer) => Qkv::Packed(layer.forward(tape, x)?),
            Qkv::Separate([queries, keys, values]) => Qkv::Separate([
                queries.forward(tape, x.clone())?,
                keys.forward(tape, x.clone())?,
                values.forward(tape, x)?,
            ]),
        };
        let measures = AttentionMeasures {
            output: self.projection.measures(),
            gradients: self.qkv.arrays().iter().any(Linear::measures),
        };
        let mixed = within(tape, "attention", || {
            Ok(ops::attention(tape, qkv, self.heads, self.dropout.site(), measures)?)
        })?;
        self.projection.forward(tape, mixed)
    }
}
