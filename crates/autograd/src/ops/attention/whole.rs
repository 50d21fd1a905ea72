//! Attention of one block over the whole sequences of its heads.

use tensor::ops;
use tensor::ops::attention::{Masks, Qkv, Settings};
use tensor::ops::dropout::Mask;
use tensor::{DType, Tensor};

use super::super::{Dropout, Rotary, autocast, named, only, values_of};
use super::measures::AttentionMeasures;
use crate::error::{AutogradError, Result};
use crate::pass::CachedPass;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Source, Var};
use crate::sink::{GradientSink, ready, target};
use crate::tape::Tape;
use crate::weight::Weight;

pub(super) const OPERATOR: &str = "attention";

/// Backward of [`attention`](super::attention()) of whole sequences.
#[derive(Debug)]
pub struct AttentionRule {
    /// `None` once backward has run.
    saved: Option<AttentionSaved>,
    settings: Settings,
    documents: Option<Tensor>,
    dropout: Option<Mask>,
    measures: bool,
    sinks: Option<Weight>,
    /// Gradients of the sinks and the type of the operands, from the input half to the weight half.
    sums: Option<(Tensor, DType)>,
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

/// [`attention_with_sinks`](super::attention_with_sinks) of one block, whose heads `settings` has.
///
/// # Errors
/// As [`ops::attention::forward`].
pub(super) fn attention(
    tape: &Tape,
    qkv: Qkv<Var>,
    settings: Settings,
    sinks: Option<&Weight>,
    dropout: Option<&Dropout>,
    measures: AttentionMeasures,
) -> Result<Var> {
    let operand = |array| autocast(tape, "attention", [array]).map(|[array]| array);
    let qkv = qkv.map(operand).transpose()?;
    let dtype = qkv.arrays()[0].tensor().dtype();
    let sink_values = named("attention", values_of(sinks, dtype))?;
    if let Some(pass) = &tape.pass().cache {
        return cached(tape, pass, &qkv, settings, None, sink_values.as_ref());
    }
    tape.begin("attention")?;
    let documents = tape.pass().documents.clone();
    let dropout = dropout.and_then(|dropout| dropout.mask(tape));
    let masks = Masks { documents: documents.as_ref(), dropout, sinks: sink_values.as_ref() };
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
        sinks: sinks.cloned(),
        sums: None,
    })
}

/// Attention of the next token of every sequence in the pass's caches, whose queries and keys
/// `rotary` rotates first.
///
/// # Errors
/// A pass that extends no caches; as [`attention`](super::attention()).
pub(super) fn rotated_attention(
    tape: &Tape,
    qkv: Var,
    settings: Settings,
    rotary: &Rotary,
    sinks: Option<&Weight>,
) -> Result<Var> {
    let [qkv] = autocast(tape, "attention", [qkv])?;
    let sinks = named("attention", values_of(sinks, qkv.tensor().dtype()))?;
    let pass = tape.pass().cache.as_ref().filter(|pass| pass.slot().is_none());
    let pass = pass.ok_or(AutogradError::NoCache)?;
    cached(tape, pass, &Qkv::Packed(qkv), settings, Some(&rotary.table), sinks.as_ref())
}

/// Attention of a pass with caches: of a whole sequence that fills them, or of the next token of every
/// sequence in them. Nothing is recorded.
///
/// # Errors
/// More calls than caches; as [`ops::cached_attention`].
fn cached(
    tape: &Tape,
    pass: &CachedPass,
    qkv: &Qkv<Var>,
    settings: Settings,
    angles: Option<&Tensor>,
    sinks: Option<&Tensor>,
) -> Result<Var> {
    let Some(cache) = pass.next() else { return Err(AutogradError::NoCache) };
    let tensors = qkv.as_ref().map(|array| array.tensor().clone());
    let output = match (pass.slot(), &tape.pass().documents) {
        (Some(slot), _) => {
            named("attention", ops::cached_attention::store(&tensors, settings.heads, cache, slot))?;
            let masks = Masks { sinks, ..Masks::default() };
            named("attention", ops::attention::forward(&tensors, settings, masks, false))?.output
        }
        (None, Some(documents)) => {
            let extended =
                ops::cached_attention::forward(&tensors, settings, cache, documents, angles, sinks);
            named("attention", extended)?
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

    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        let gradient = only(outputs)?;
        let Some(AttentionSaved { qkv, output, logsumexp }) = self.saved.take() else {
            return Ok(vec![None; wanted.len()]);
        };
        let masks = Masks { documents: self.documents.as_ref(), dropout: self.dropout, sinks: None };
        let (settings, measures) = (self.settings, self.measures);
        if let Some(sinks) = self.sinks.as_ref().filter(|sinks| sinks.is_trained()) {
            let (values, heads) = (sinks.values(output.dtype())?, settings.heads);
            let sums = ops::attention::sink_gradients(&gradient, &output, &logsumexp, &values, heads)?;
            self.sums = Some((sums, output.dtype()));
        }
        let gradients =
            ops::attention::backward(&gradient, &qkv, &output, &logsumexp, settings, masks, measures)?;
        Ok(gradients.into_vec().into_iter().map(Some).collect())
    }

    fn has_weights(&self) -> bool {
        self.sinks.as_ref().is_some_and(Weight::is_trained)
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let (Some(sinks), Some((sums, dtype))) = (&self.sinks, &self.sums) else { return Ok(()) };
        if let Some(target) = target(sink, sinks)? {
            ops::attention::accumulate_sinks(sums, *dtype, &target)?;
        }
        ready(sink, sinks)
    }
}
