//! Causal self-attention between linear projections.

use autograd::ops::AttentionMeasures;
use autograd::{Tape, Var, ops};
use tensor::ops::attention::{Heads, Qkv};

use super::divided::{DividedLayer, each_lane};
use super::stack::each_piece;
use super::{Dropout, Layer, Linear, within};
use crate::error::{NnError, Result};

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

impl DividedLayer for CausalSelfAttention {
    fn forward_lanes(lanes: &[Self], tape: &Tape, x: Vec<Var>) -> Result<Vec<Var>> {
        let plain = |lane: &Self| match &lane.qkv {
            Qkv::Packed(layer) if lane.dropout.site().is_none() => {
                !layer.measures() && !lane.projection.measures()
            }
            _ => false,
        };
        let Some(first) = lanes.first().filter(|_| lanes.iter().all(plain)) else {
            return each_lane(lanes, x, |lane, x| lane.forward(tape, x));
        };
        let qkv = each_lane(lanes, x, |lane, x| lane.qkv.arrays()[0].forward(tape, x))?;
        let mixed = within(tape, "attention", || Ok(ops::lane_attention(tape, qkv, first.heads.into())?))?;
        each_lane(lanes, mixed, |lane, mixed| lane.projection.forward(tape, mixed))
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
            Qkv::Piece { .. } => {
                return Err(NnError::Sizes("queries and keys of other positions have no layer".to_owned()));
            }
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

    fn forward_pieces(&self, tape: &Tape, x: Vec<Var>) -> Result<Vec<Var>> {
        let Qkv::Packed(layer) = &self.qkv else {
            let text = "sequences in pieces need queries, keys and values of one layer";
            return Err(NnError::Sizes(text.to_owned()));
        };
        let qkv = each_piece(tape, x, |x| layer.forward(tape, x))?;
        let (settings, dropout) = (self.heads.into(), self.dropout.site());
        let mixed =
            within(tape, "attention", || Ok(ops::piece_attention(tape, qkv, settings, None, dropout)?))?;
        each_piece(tape, mixed, |mixed| self.projection.forward(tape, mixed))
    }
}
