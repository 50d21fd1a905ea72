//! Causal self-attention: multi-head, grouped-query or multi-query.

use tensor::Tensor;
use tensor::ops;
use tensor::ops::attention::{Heads, Qkv};

use super::{named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved};
use crate::tape::{Source, Tape, Var};

/// Backward of [`attention`].
#[derive(Debug)]
pub struct AttentionRule {
    /// `None` once backward has run.
    saved: Option<AttentionSaved>,
    heads: Heads,
}

#[derive(Debug)]
struct AttentionSaved {
    qkv: Qkv<Tensor>,
    output: Tensor,
    logsumexp: Tensor,
}

impl AttentionSaved {
    fn list(&self) -> Vec<Saved<'_>> {
        let AttentionSaved { qkv, output, logsumexp } = self;
        let qkv = qkv.names().iter().zip(qkv.arrays()).map(|(name, array)| Saved::new(name, array));
        qkv.chain([Saved::new("output", output), Saved::new("logsumexp", logsumexp)]).collect()
    }
}

/// Attention over `qkv`, arrays of shape `[batch, time, columns]` with the columns that [`Heads`] states; the
/// result is `[batch, time, heads.query · heads.width]`. Errors: as [`ops::attention::forward`].
pub fn attention(tape: &Tape, qkv: Qkv<Var>, heads: Heads) -> Result<Var> {
    let tensors = qkv.as_ref().map(|array| array.tensor().clone());
    let ops::attention::Output { output, logsumexp } =
        named("attention", ops::attention::forward(&tensors, heads))?;
    let saved = AttentionSaved { qkv: tensors, output: output.clone(), logsumexp };
    let sources: Vec<Source> = qkv.arrays().iter().map(Var::source).collect();
    tape.record_one(&sources, output, || AttentionRule { saved: Some(saved), heads })
}

impl Rule for AttentionRule {
    fn operator(&self) -> &'static str {
        "attention"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        self.saved.as_ref().map(AttentionSaved::list).unwrap_or_default()
    }

    fn backward_input(
        &mut self,
        outputs: Vec<Option<Tensor>>,
        wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let gradient = only(outputs)?;
        let Some(AttentionSaved { qkv, output, logsumexp }) = self.saved.take() else {
            return Ok(vec![None; wanted.len()]);
        };
        let gradients = ops::attention::backward(&gradient, &qkv, &output, &logsumexp, self.heads)?;
        Ok(gradients.into_vec().into_iter().map(Some).collect())
    }
}
