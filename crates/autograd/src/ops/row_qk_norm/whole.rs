//! The norms of rows that are here as a whole.

use tensor::ops::attention::Heads;
use tensor::ops::{rearrange, rms_norm};
use tensor::{DType, Tensor};

use super::super::{QkNormWeights, autocast, named, only};
use super::columns::{COLUMNS, divided};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::Var;
use crate::sink::{GradientSink, ready, target};
use crate::tape::Tape;
use crate::weight::Weight;

pub(super) const OPERATOR: &str = "row_qk_norm";

/// Backward of [`row_qk_norm`](super::row_qk_norm()).
#[derive(Debug)]
pub struct RowQkNormRule {
    /// Queries and keys; the input half adds the gradients of their normalised values.
    parts: [Normalised; 2],
    heads: Heads,
    weights: QkNormWeights,
}

/// The queries of all heads, or the keys, before their norm.
#[derive(Debug)]
struct Normalised {
    x: Tensor,
    rstd: Tensor,
    gradient: Option<Tensor>,
}

impl Normalised {
    /// Returns the operands of the norm's backward pass, and its result.
    fn forward(x: Tensor, weight: &Tensor, epsilon: f32) -> tensor::Result<(Self, Tensor)> {
        let rms_norm::Output { output, rstd } = rms_norm::forward(&x, weight, epsilon)?;
        Ok((Normalised { x, rstd, gradient: None }, output))
    }

    fn saved(&self, [x, rstd]: [&'static str; 2]) -> [Saved<'_>; 2] {
        [Saved::new(x, &self.x), Saved::new(rstd, &self.rstd)]
    }

    fn backward_input(&mut self, gradient: Tensor, weight: &Weight) -> tensor::Result<Tensor> {
        let values = weight.values(self.x.dtype())?;
        let input = rms_norm::backward_input(&gradient, None, &self.x, &values, &self.rstd, false)?;
        self.gradient = Some(gradient);
        Ok(input)
    }

    fn backward_weight(self, sink: &mut dyn GradientSink, weight: &Weight) -> Result<()> {
        if let (Some(target), Some(gradient)) = (target(sink, weight)?, &self.gradient) {
            rms_norm::backward_weight(gradient, &self.x, &self.rstd, &target)?;
        }
        ready(sink, weight)
    }
}

/// The norms of one block.
///
/// # Errors
/// Shapes or types that do not agree, out of memory.
pub(super) fn row_qk_norm(
    tape: &Tape,
    qkv: Var,
    heads: Heads,
    weights: &QkNormWeights,
    epsilon: f32,
) -> Result<Var> {
    let [qkv] = autocast(tape, OPERATOR, [qkv])?;
    tape.begin(OPERATOR)?;
    let forward = |dtype: DType| {
        let [queries, keys, values] = divided(qkv.tensor(), heads)?;
        let (query, queries) = Normalised::forward(queries, &weights.query.values(dtype)?, epsilon)?;
        let (key, keys) = Normalised::forward(keys, &weights.key.values(dtype)?, epsilon)?;
        Ok(([query, key], rearrange::concatenate(&[&queries, &keys, &values], COLUMNS)?))
    };
    let (parts, output) = named(OPERATOR, forward(qkv.tensor().dtype()))?;
    tape.record_one(&[qkv.source()], output, || RowQkNormRule { parts, heads, weights: weights.clone() })
}

impl Rule for RowQkNormRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let [query, key] = &self.parts;
        let saved = [query.saved(["queries", "query rstd"]), key.saved(["keys", "key rstd"])];
        saved.into_iter().flatten().collect()
    }

    fn has_weights(&self) -> bool {
        self.weights.query.is_trained() || self.weights.key.is_trained()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let gradient = only(outputs)?;
        let [queries, keys, values] = divided(&gradient, self.heads)?;
        drop(gradient);
        let [query, key] = &mut self.parts;
        let queries = query.backward_input(queries, &self.weights.query)?;
        let keys = key.backward_input(keys, &self.weights.key)?;
        Ok(vec![Some(rearrange::concatenate(&[&queries, &keys, &values], COLUMNS)?)])
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let RowQkNormRule { parts: [query, key], weights, .. } = *self;
        key.backward_weight(sink, &weights.key)?;
        query.backward_weight(sink, &weights.query)
    }
}
