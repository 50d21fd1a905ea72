//! Causal self-attention between linear projections.

use autograd::ops::AttentionMeasures;
use autograd::{Tape, Var, ops};
use tensor::ops::attention::{Qkv, Settings};

use super::{Dropout, Layer, Linear, within};
use crate::error::{NnError, Result};

/// Causal self-attention: queries, keys and values from one linear layer or three, attention per head, and an
/// output projection.
#[derive(Debug)]
pub struct CausalSelfAttention {
    qkv: Qkv<Linear>,
    projection: Linear,
    settings: Settings,
    dropout: Dropout,
}

impl CausalSelfAttention {
    /// Creates the layer. `qkv` must output the columns that the heads of `settings` describe, and
    /// `projection` takes the columns of all query heads. Shards of both have equal parts of the heads.
    pub fn new(qkv: Qkv<Linear>, projection: Linear, settings: impl Into<Settings>) -> Self {
        CausalSelfAttention { qkv, projection, settings: settings.into(), dropout: Dropout::none() }
    }

    /// Adds dropout of attention weights in training.
    #[must_use]
    pub fn dropping(self, dropout: Dropout) -> Self {
        CausalSelfAttention { dropout, ..self }
    }
}

impl CausalSelfAttention {
    /// Computes attention over the blocks of `qkv`, and projects the results.
    fn attend(&self, tape: &Tape, qkv: Qkv<Var>, measures: AttentionMeasures) -> Result<Var> {
        let mixed_blc = within(tape, "attention", || {
            Ok(ops::attention(tape, qkv, self.settings, self.dropout.site(), measures)?)
        })?;
        self.projection.forward_blocks(tape, mixed_blc)
    }
}

impl Layer for CausalSelfAttention {
    type Stream = Var;

    /// Maps `[batch, time, width]` to the same shape.
    ///
    /// # Errors
    /// An operand has a wrong shape, memory is exhausted, or a collective failed.
    fn forward(&self, tape: &Tape, x_bld: Var) -> Result<Var> {
        let dtype = x_bld.tensor().dtype();
        let measures = AttentionMeasures {
            output: self.projection.measures(),
            gradients: self.qkv.arrays().iter().any(Linear::measures),
        };
        let y_bld = match &self.qkv {
            Qkv::Packed(layer) => {
                let attend = |x_bld| {
                    let qkv_blc = layer.edges().columns(layer.forward_blocks(tape, x_bld)?);
                    self.attend(tape, Qkv::Packed(qkv_blc), measures)
                };
                let x_bld = layer.enter(tape, x_bld)?;
                match ops::attends_jointly(tape, &[], self.dropout.site(), measures) {
                    true => attend(x_bld)?,
                    false => x_bld.each_shard(tape, attend)?,
                }
            }
            Qkv::Separate([queries, keys, values]) => {
                let qkv_blc = [
                    queries.forward(tape, x_bld.clone())?,
                    keys.forward(tape, x_bld.clone())?,
                    values.forward(tape, x_bld)?,
                ];
                self.attend(tape, Qkv::Separate(qkv_blc), measures)?
            }
            Qkv::Piece { .. } => {
                return Err(NnError::Sizes("queries and keys of other positions have no layer".to_owned()));
            }
        };
        self.projection.leave(tape, y_bld, dtype)
    }
}
