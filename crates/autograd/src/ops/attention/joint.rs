//! Attention of several shards of heads at once.
//!
//! The one idea: sequences do not depend on each other, so those of all shards are one batch, which fills a
//! GPU better than one shard after the other. Their operands are copied together, a small part of what
//! attention moves.

use device::{Category, Request};
use tensor::ops;
use tensor::ops::attention::{Masks, Qkv, Settings};
use tensor::{Shape, Tensor};

use super::super::{autocast, named};
use super::whole::OPERATOR;
use crate::error::{AutogradError, Result};
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Source, Var};
use crate::tape::Tape;

/// Backward of attention of several shards at once.
#[derive(Debug)]
pub struct JointAttentionRule {
    /// `None` once backward has run.
    saved: Option<JointSaved>,
    settings: Settings,
    shards: usize,
}

#[derive(Debug)]
struct JointSaved {
    qkv: Tensor,
    output: Tensor,
    logsumexp: Tensor,
}

/// Attention of the shards that are here over their own packed `[batch, time, columns]`, without masks:
/// `[batch, time, heads.query · heads.width]` each, the bits of one shard after the other.
///
/// # Errors
/// As [`ops::attention::forward`].
pub(super) fn attention(tape: &Tape, qkv: Var, settings: Settings) -> Result<Var> {
    let placements = qkv.placements();
    let shards = qkv.into_blocks().map(|qkv| autocast(tape, OPERATOR, [qkv]).map(|[qkv]| qkv));
    let shards = shards.collect::<Result<Vec<_>>>()?;
    tape.begin(OPERATOR)?;
    let sources: Vec<Source> = shards.iter().map(Var::block_source).collect();
    let tensors: Vec<Tensor> = shards.into_iter().map(Var::into_tensor).collect();
    let (count, request) = (tensors.len(), Request::new(Category::Activation, OPERATOR));
    let qkv = named(OPERATOR, together(&tensors, request))?;
    drop(tensors);
    let packed = Qkv::Packed(qkv.clone());
    let ops::attention::Output { output, logsumexp } =
        named(OPERATOR, ops::attention::forward(&packed, settings, Masks::default(), false))?;
    let outputs = named(OPERATOR, apart(&output, count))?;
    let saved = JointSaved { qkv, output, logsumexp };
    let rule = || JointAttentionRule { saved: Some(saved), settings, shards: count };
    let outputs = Var::from_blocks(tape.record(&sources, outputs, rule)?);
    Ok(outputs.ok_or(AutogradError::NotRecorded)?.with_placements(placements))
}

/// Copies arrays of one shape to one, one after the other along the first dimension.
fn together(parts: &[Tensor], request: Request) -> tensor::Result<Tensor> {
    let Some(first) = parts.first() else { return Err(no_shard()) };
    let dims = first.shape();
    let rows = dims.dims().first().copied().unwrap_or(1) * parts.len();
    let shape: Shape = dims.with(0, rows).ok_or_else(no_shard)?;
    let all = Tensor::empty(first.device(), shape, first.dtype(), request)?;
    for (index, part) in parts.iter().enumerate() {
        all.view(index * part.elements(), part.shape())?.copy_from(part)?;
    }
    Ok(all)
}

/// The parts of [`together`], as views.
fn apart(all: &Tensor, parts: usize) -> tensor::Result<Vec<Tensor>> {
    let rows = all.shape().dims().first().copied().unwrap_or(1) / parts;
    let shape = all.shape().with(0, rows).ok_or_else(no_shard)?;
    (0..parts).map(|index| all.view(index * shape.elements(), shape)).collect()
}

fn no_shard() -> tensor::TensorError {
    tensor::TensorError::Count { operator: OPERATOR, actual: 0, expected: 1 }
}

impl Rule for JointAttentionRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let Some(JointSaved { qkv, output, logsumexp }) = &self.saved else { return Vec::new() };
        vec![Saved::new("qkv", qkv), Saved::new("output", output), Saved::new("logsumexp", logsumexp)]
    }

    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        let Some(JointSaved { qkv, output, logsumexp }) = self.saved.take() else {
            return Ok(vec![None; wanted.len()]);
        };
        let gradients = outputs.into_iter().collect::<Option<Vec<_>>>().ok_or(AutogradError::NotRecorded)?;
        let gradient = together(&gradients, Request::new(Category::ActivationGradient, OPERATOR))?;
        drop(gradients);
        let (packed, masks) = (Qkv::Packed(qkv), Masks::default());
        let gradients =
            ops::attention::backward(&gradient, &packed, &output, &logsumexp, self.settings, masks, false)?;
        let Some(all) = gradients.into_vec().pop() else { return Err(AutogradError::NotRecorded) };
        Ok(apart(&all, self.shards)?.into_iter().map(Some).collect())
    }
}
