//! Causal self-attention over packed queries, keys and values.

use tensor::Tensor;
use tensor::ops;

use super::{named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved};
use crate::tape::{Tape, Var};

/// Backward of [`attention`].
#[derive(Debug)]
pub struct AttentionRule {
    /// What backward reads; dropped as soon as it has.
    saved: Option<AttentionSaved>,
    heads: usize,
}

#[derive(Debug)]
struct AttentionSaved {
    qkv: Tensor,
    output: Tensor,
    logsumexp: Tensor,
}

impl AttentionSaved {
    fn list(&self) -> Vec<Saved<'_>> {
        let AttentionSaved { qkv, output, logsumexp } = self;
        vec![Saved::new("qkv", qkv), Saved::new("output", output), Saved::new("logsumexp", logsumexp)]
    }
}

/// `qkv` is [batch, time, 3 · width]; the result is [batch, time, width].
pub fn attention(tape: &Tape, qkv: Var, heads: usize) -> Result<Var> {
    let ops::attention::Output { output, logsumexp } =
        named("attention", ops::attention::forward(qkv.tensor(), heads))?;
    let saved = AttentionSaved { qkv: qkv.tensor().clone(), output: output.clone(), logsumexp };
    tape.record_one(&[qkv.source()], output, || AttentionRule { saved: Some(saved), heads })
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
        _wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let gradient = only(outputs)?;
        let Some(AttentionSaved { qkv, output, logsumexp }) = self.saved.take() else {
            return Ok(vec![None]);
        };
        Ok(vec![Some(ops::attention::backward(&gradient, &qkv, &output, &logsumexp, self.heads)?)])
    }
}
