//! Causal self-attention: multi-head, grouped-query or multi-query.

use tensor::Tensor;
use tensor::ops;
use tensor::ops::attention::{Masks, Qkv, Settings};
use tensor::ops::dropout::Mask;

use super::{Dropout, autocast, named, only};
use crate::error::{AutogradError, Result};
use crate::pass::CachedPass;
use crate::rule::{Rule, Saved};
use crate::tape::{Source, Tape, Var};

/// The results of attention that are accompanied by their largest magnitudes on a GPU, because FP8 matmuls
/// read them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttentionMeasures {
    /// The output.
    pub output: bool,
    /// The gradients of queries, keys and values.
    pub gradients: bool,
}

/// Backward of [`attention`].
#[derive(Debug)]
pub struct AttentionRule {
    /// `None` once backward has run.
    saved: Option<AttentionSaved>,
    settings: Settings,
    documents: Option<Tensor>,
    dropout: Option<Mask>,
    measures: bool,
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

/// Attention over `qkv`, arrays of shape `[batch, time, columns]` with the columns that the heads state; the
/// result is `[batch, time, heads.query · heads.width]`. Tokens see only their own document, and in training
/// `dropout` drops attention weights.
///
/// # Errors
/// As [`ops::attention::forward`].
pub fn attention(
    tape: &Tape,
    qkv: Qkv<Var>,
    settings: impl Into<Settings>,
    dropout: Option<&Dropout>,
    measures: AttentionMeasures,
) -> Result<Var> {
    let settings = settings.into();
    let operand = |array| autocast(tape, "attention", [array]).map(|[array]| array);
    let qkv = qkv.map(operand).transpose()?;
    if let Some(pass) = &tape.pass().cache {
        return cached(tape, pass, &qkv, settings);
    }
    tape.begin("attention")?;
    let documents = tape.pass().documents.clone();
    let dropout = dropout.and_then(|dropout| dropout.mask(tape));
    let masks = Masks { documents: documents.as_ref(), dropout };
    let tensors = qkv.as_ref().map(|array| array.tensor().clone());
    let ops::attention::Output { output, logsumexp } =
        named("attention", ops::attention::forward(&tensors, settings, masks, measures.output))?;
    let saved = AttentionSaved { qkv: tensors, output: output.clone().with_maxima(None), logsumexp };
    let sources: Vec<Source> = qkv.arrays().iter().map(Var::source).collect();
    let measures = measures.gradients;
    tape.record_one(&sources, output, || AttentionRule {
        saved: Some(saved),
        settings,
        documents,
        dropout,
        measures,
    })
}

/// [`attention`] of a pass with caches: of a whole sequence that fills them, or of the next token of every
/// sequence in them. Nothing is recorded.
///
/// # Errors
/// More calls than caches; as [`ops::cached_attention`].
fn cached(tape: &Tape, pass: &CachedPass, qkv: &Qkv<Var>, settings: Settings) -> Result<Var> {
    let Some(cache) = pass.next() else { return Err(AutogradError::NoCache) };
    let tensors = qkv.as_ref().map(|array| array.tensor().clone());
    let output = match (pass.slot(), &tape.pass().documents) {
        (Some(slot), _) => {
            named("attention", ops::cached_attention::store(&tensors, settings.heads, cache, slot))?;
            named("attention", ops::attention::forward(&tensors, settings, Masks::default(), false))?.output
        }
        (None, Some(documents)) => {
            named("attention", ops::cached_attention::forward(&tensors, settings, cache, documents))?
        }
        (None, None) => return Err(AutogradError::NoCache),
    };
    Ok(tape.constant(output))
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
        let masks = Masks { documents: self.documents.as_ref(), dropout: self.dropout };
        let (settings, measures) = (self.settings, self.measures);
        let gradients =
            ops::attention::backward(&gradient, &qkv, &output, &logsumexp, settings, masks, measures)?;
        Ok(gradients.into_vec().into_iter().map(Some).collect())
    }
}
