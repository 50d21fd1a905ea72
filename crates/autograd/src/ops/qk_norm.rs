//! Normalisation of queries and keys, fused with their rotation.

use tensor::ops;
use tensor::ops::attention::Heads;
use tensor::{DType, Tensor};

use super::{Rotary, autocast, named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::Var;
use crate::sink::{GradientSink, discarded, ready, target};
use crate::tape::Tape;
use crate::weight::Weight;

/// Weights shared by all query heads, and by all key heads, `[heads.width]` each.
#[derive(Clone, Debug)]
pub struct QkNormWeights {
    /// Weight of query heads.
    pub query: Weight,
    /// Weight of key heads.
    pub key: Weight,
}

impl QkNormWeights {
    /// Returns the weights of queries and of keys in `dtype`.
    fn values(&self, dtype: DType) -> tensor::Result<[Tensor; 2]> {
        Ok([self.query.values(dtype)?, self.key.values(dtype)?])
    }
}

/// Backward of [`qk_norm`].
#[derive(Debug)]
pub struct QkNormRule {
    /// The input and its statistics, dropped by the input half.
    saved: Option<(Tensor, Tensor)>,
    heads: Heads,
    weights: QkNormWeights,
    rotary: Rotary,
    /// Partial sums of the weights' gradients, kept between the input and weight halves of backward.
    sums: Option<(Tensor, DType)>,
}

/// Normalises every query and key head of packed `qkv_blc [batch, time, heads.packed_columns()]`, and rotates
/// it to its position.
pub fn qk_norm(
    tape: &Tape,
    qkv_blc: Var,
    heads: Heads,
    weights: &QkNormWeights,
    rotary: &Rotary,
    epsilon: f32,
) -> Result<Var> {
    let [qkv_blc] = autocast(tape, "qk_norm", [qkv_blc])?;
    tape.begin("qk_norm")?;
    let values = named("qk_norm", weights.values(qkv_blc.tensor().dtype()))?;
    let forward = ops::qk_norm::forward(qkv_blc.tensor(), heads, operands(&values), rotary.angles(), epsilon);
    let ops::qk_norm::Output { output: output_blc, rstd: rstd_th } = named("qk_norm", forward)?;
    tape.record_one(&[qkv_blc.source()], output_blc, || QkNormRule {
        saved: Some((qkv_blc.tensor().clone(), rstd_th)),
        heads,
        weights: weights.clone(),
        rotary: rotary.clone(),
        sums: None,
    })
}

fn operands([query, key]: &[Tensor; 2]) -> ops::qk_norm::Weights<'_> {
    ops::qk_norm::Weights { query, key }
}

impl Rule for QkNormRule {
    fn operator(&self) -> &'static str {
        "qk_norm"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let saved = self.saved.iter();
        saved.flat_map(|(qkv, rstd)| [Saved::new("qkv", qkv), Saved::new("rstd", rstd)]).collect()
    }

    fn has_weights(&self) -> bool {
        self.weights.query.is_trained() || self.weights.key.is_trained()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let dy_blc = only(outputs)?;
        let Some((qkv_blc, rstd_th)) = self.saved.take() else { return Ok(vec![None]) };
        let values = self.weights.values(qkv_blc.dtype())?;
        let angles = self.rotary.angles();
        let weights = operands(&values);
        let heads = self.heads;
        let measures = self.rotary.measures;
        let gradients =
            ops::qk_norm::backward_input(dy_blc, &qkv_blc, &rstd_th, heads, weights, angles, measures)?;
        self.sums = self.has_weights().then(|| (gradients.sums, qkv_blc.dtype()));
        Ok(vec![Some(gradients.input)])
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let Some((sums, computed)) = &self.sums else { return Ok(()) };
        let QkNormWeights { query, key } = &self.weights;
        let (query_target, key_target) = match (target(sink, query)?, target(sink, key)?) {
            (Some(query), Some(key)) => (query, key),
            (Some(query), None) => (query.clone(), discarded(key, &query)?),
            (None, Some(key)) => (discarded(query, &key)?, key),
            (None, None) => return Ok(()),
        };
        ops::qk_norm::backward_weight(sums, *computed, &query_target, &key_target)?;
        ready(sink, key)?;
        ready(sink, query)
    }
}
