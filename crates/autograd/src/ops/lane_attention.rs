//! Attention of several lanes of a layer at once.

use device::{Category, Request};
use tensor::ops;
use tensor::ops::attention::{Masks, Qkv, Settings};
use tensor::{Shape, Tensor};

use super::{AttentionMeasures, attention, autocast, named};
use crate::error::{AutogradError, Result};
use crate::rule::{Rule, Saved};
use crate::tape::{Source, Tape, Var};

const OPERATOR: &str = "lane_attention";

/// Backward of [`lane_attention`].
#[derive(Debug)]
pub struct LaneAttentionRule {
    /// `None` once backward has run.
    saved: Option<LanesSaved>,
    settings: Settings,
    lanes: usize,
}

#[derive(Debug)]
struct LanesSaved {
    qkv: Tensor,
    output: Tensor,
    logsumexp: Tensor,
}

/// Attention of each lane over its own `[batch, time, columns]`, the packed queries, keys and values of its
/// heads, without dropout and sinks: `[batch, time, heads.query · heads.width]` each, the bits of
/// [`attention`].
///
/// The one idea: sequences do not depend on each other, so those of all lanes are one batch, which fills a
/// GPU better than one lane after the other. Their operands are copied together, a small part of what
/// attention moves.
///
/// # Errors
/// As [`attention`].
pub fn lane_attention(tape: &Tape, lanes: Vec<Var>, settings: Settings) -> Result<Vec<Var>> {
    let pass = tape.pass();
    if lanes.len() == 1 || pass.cache.is_some() || pass.documents.is_some() {
        let alone = |qkv| attention(tape, Qkv::Packed(qkv), settings, None, AttentionMeasures::default());
        return lanes.into_iter().map(alone).collect();
    }
    let lanes = lanes.into_iter().map(|qkv| autocast(tape, OPERATOR, [qkv]).map(|[qkv]| qkv));
    let lanes = lanes.collect::<Result<Vec<_>>>()?;
    tape.begin(OPERATOR)?;
    let sources: Vec<Source> = lanes.iter().map(Var::source).collect();
    let tensors: Vec<Tensor> = lanes.into_iter().map(Var::into_tensor).collect();
    let (count, request) = (tensors.len(), Request::new(Category::Activation, OPERATOR));
    let qkv = named(OPERATOR, together(&tensors, request))?;
    drop(tensors);
    let packed = Qkv::Packed(qkv.clone());
    let ops::attention::Output { output, logsumexp } =
        named(OPERATOR, ops::attention::forward(&packed, settings, Masks::default(), false))?;
    let outputs = named(OPERATOR, apart(&output, count))?;
    let saved = LanesSaved { qkv, output, logsumexp };
    tape.record(&sources, outputs, || LaneAttentionRule { saved: Some(saved), settings, lanes: count })
}

/// Copies arrays of one shape to one, one after the other along the first dimension.
fn together(parts: &[Tensor], request: Request) -> tensor::Result<Tensor> {
    let Some(first) = parts.first() else { return Err(no_lane()) };
    let dims = first.shape();
    let rows = dims.dims().first().copied().unwrap_or(1) * parts.len();
    let shape: Shape = dims.with(0, rows).ok_or_else(no_lane)?;
    let all = Tensor::empty(first.device(), shape, first.dtype(), request)?;
    for (index, part) in parts.iter().enumerate() {
        all.view(index * part.elements(), part.shape())?.copy_from(part)?;
    }
    Ok(all)
}

/// The parts of [`together`], as views.
fn apart(all: &Tensor, parts: usize) -> tensor::Result<Vec<Tensor>> {
    let rows = all.shape().dims().first().copied().unwrap_or(1) / parts;
    let shape = all.shape().with(0, rows).ok_or_else(no_lane)?;
    (0..parts).map(|index| all.view(index * shape.elements(), shape)).collect()
}

fn no_lane() -> tensor::TensorError {
    tensor::TensorError::Count { operator: OPERATOR, actual: 0, expected: 1 }
}

impl Rule for LaneAttentionRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let Some(LanesSaved { qkv, output, logsumexp }) = &self.saved else { return Vec::new() };
        vec![Saved::new("qkv", qkv), Saved::new("output", output), Saved::new("logsumexp", logsumexp)]
    }

    fn backward_input(
        &mut self,
        outputs: Vec<Option<Tensor>>,
        wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let Some(LanesSaved { qkv, output, logsumexp }) = self.saved.take() else {
            return Ok(vec![None; wanted.len()]);
        };
        let gradients = outputs.into_iter().collect::<Option<Vec<_>>>().ok_or(AutogradError::NotRecorded)?;
        let gradient = together(&gradients, Request::new(Category::ActivationGradient, OPERATOR))?;
        drop(gradients);
        let (packed, masks) = (Qkv::Packed(qkv), Masks::default());
        let gradients =
            ops::attention::backward(&gradient, &packed, &output, &logsumexp, self.settings, masks, false)?;
        let Some(all) = gradients.into_vec().pop() else { return Err(AutogradError::NotRecorded) };
        Ok(apart(&all, self.lanes)?.into_iter().map(Some).collect())
    }
}
