//! The norms of rows whose heads are in shards: mean squares are sums over shards.

use device::{Category, DType, Request};
use tensor::ops::attention::Heads;
use tensor::ops::divided_norm::{self, Saved as Operands};
use tensor::ops::{rearrange, rms_norm};
use tensor::{Tensor, TensorError};

use super::super::cast::autocast_all;
use super::super::{QkNormWeights, named};
use super::columns::{COLUMNS, divided};
use super::whole::OPERATOR;
use crate::error::{AutogradError, Result};
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Source, TensorRanks, Var};
use crate::sink::{GradientSink, ready, target};
use crate::tape::Tape;
use crate::weight::Weight;

/// Backward of the norms of sharded rows.
#[derive(Debug)]
pub struct ShardedNormRule {
    shards: Vec<ShardNorm>,
    heads: Heads,
    rows: RowStatistics,
    ranks: TensorRanks,
}

/// The norm of queries and keys of one shard.
#[derive(Debug)]
struct ShardNorm {
    weights: QkNormWeights,
    /// Queries, then keys; the input half adds the gradients of their normalised values.
    parts: [Tensor; 2],
    gradients: Option<[Tensor; 2]>,
}

/// Sums over the columns of all shards, or statistics that follow from them.
#[derive(Debug)]
struct RowStatistics {
    /// Of the rows of queries, then of keys: f32 `[2, rows]`.
    all: Tensor,
    /// Columns of all query heads and of all key heads.
    columns: [usize; 2],
}

impl RowStatistics {
    /// The statistics of queries, part 0, or of keys.
    fn part(&self, part: usize) -> tensor::Result<Tensor> {
        part_of(&self.all, part)
    }
}

/// Row `part` of `[2, rows]`.
fn part_of(all: &Tensor, part: usize) -> tensor::Result<Tensor> {
    let rows = all.shape().columns();
    all.view(part * rows, [rows])
}

/// The norms of rows of which each `qkv` has the heads of a shard that is here.
///
/// # Errors
/// Shapes or types that do not agree, no shard, out of memory, a failed collective.
pub(super) fn row_qk_norm(
    tape: &Tape,
    mut qkv: Vec<Var>,
    heads: Heads,
    weights: &[QkNormWeights],
    columns: [usize; 2],
    epsilon: f32,
) -> Result<Vec<Var>> {
    autocast_all(tape, OPERATOR, &mut qkv)?;
    tape.begin(OPERATOR)?;
    let ranks = TensorRanks::new(tape, false);
    let sources: Vec<Source> = qkv.iter().map(Var::block_source).collect();
    let (mut shards, mut values) = (Vec::with_capacity(qkv.len()), Vec::with_capacity(qkv.len()));
    for (qkv, weights) in qkv.into_iter().zip(weights) {
        let [queries, keys, of_values] = named(OPERATOR, divided(qkv.tensor(), heads))?;
        shards.push(ShardNorm { weights: weights.clone(), parts: [queries, keys], gradients: None });
        values.push(of_values);
    }
    let sums = shards.iter().map(ShardNorm::squares).collect::<tensor::Result<Vec<_>>>();
    let request = Request::new(Category::Activation, OPERATOR);
    let rows = RowStatistics { all: ranks.sum(named(OPERATOR, sums)?, request)?, columns };
    for (part, columns) in columns.into_iter().enumerate() {
        named(OPERATOR, divided_norm::rstd(&rows.part(part)?, columns, epsilon))?;
    }
    let normalised = shards.iter().zip(values).map(|(shard, values)| shard.forward(&rows, &values));
    let outputs = named(OPERATOR, normalised.collect::<tensor::Result<Vec<_>>>())?;
    tape.record(&sources, outputs, || ShardedNormRule { shards, heads, rows, ranks })
}

impl ShardNorm {
    fn weight(&self, part: usize) -> &Weight {
        if part == 0 { &self.weights.query } else { &self.weights.key }
    }

    /// Makes a number of every row of queries and of keys.
    fn of_rows(
        &self,
        category: Category,
        write: impl Fn(usize, &Tensor) -> tensor::Result<()>,
    ) -> tensor::Result<Tensor> {
        let queries = &self.parts[0];
        let request = Request::new(category, OPERATOR);
        let all = Tensor::empty(queries.device(), [2, queries.shape().rows()], DType::F32, request)?;
        (0..2).try_for_each(|part| write(part, &part_of(&all, part)?))?;
        Ok(all)
    }

    fn squares(&self) -> tensor::Result<Tensor> {
        self.of_rows(Category::Activation, |part, sums| divided_norm::squares(&self.parts[part], sums))
    }

    /// Packs the normalised queries and keys with the values.
    fn forward(&self, rows: &RowStatistics, values: &Tensor) -> tensor::Result<Tensor> {
        let normalised = |part: usize| {
            let x = &self.parts[part];
            divided_norm::forward(x, &self.weight(part).values(x.dtype())?, &rows.part(part)?)
        };
        rearrange::concatenate(&[&normalised(0)?, &normalised(1)?, values], COLUMNS)
    }

    /// Calls `body` with the operands of the backward pass of queries or keys.
    fn with_operands<T>(
        &self,
        rows: &RowStatistics,
        part: usize,
        body: impl FnOnce(Operands<'_>) -> tensor::Result<T>,
    ) -> tensor::Result<T> {
        let x = &self.parts[part];
        let (weight, rstd) = (self.weight(part).values(x.dtype())?, rows.part(part)?);
        body(Operands { x, weight: &weight, rstd: &rstd })
    }

    fn products(&self, rows: &RowStatistics, gradients: &[Tensor; 2]) -> tensor::Result<Tensor> {
        self.of_rows(Category::ActivationGradient, |part, sums| {
            self.with_operands(rows, part, |operands| {
                divided_norm::products(&gradients[part], operands, sums)
            })
        })
    }

    /// The gradient of queries, keys and values, from the gradients of normalised ones; `sums` are products
    /// over all shards.
    fn backward_input(
        &self,
        rows: &RowStatistics,
        [queries, keys, values]: [&Tensor; 3],
        sums: &Tensor,
    ) -> tensor::Result<Tensor> {
        let input = |part: usize, dy: &Tensor| {
            self.with_operands(rows, part, |operands| {
                divided_norm::backward_input(dy, operands, &part_of(sums, part)?, rows.columns[part])
            })
        };
        rearrange::concatenate(&[&input(0, queries)?, &input(1, keys)?, values], COLUMNS)
    }

    fn backward_weight(&self, rows: &RowStatistics, part: usize, sink: &mut dyn GradientSink) -> Result<()> {
        let weight = self.weight(part);
        if let (Some(target), Some(gradients)) = (target(sink, weight)?, &self.gradients) {
            let (x, rstd) = (&self.parts[part], rows.part(part)?);
            rms_norm::backward_weight(&gradients[part], x, &rstd, &target)?;
        }
        ready(sink, weight)
    }
}

impl Rule for ShardedNormRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let parts = self.shards.iter().map(|shard| &shard.parts);
        let parts =
            parts.flat_map(|[queries, keys]| [Saved::new("queries", queries), Saved::new("keys", keys)]);
        parts.chain([Saved::new("rstd", &self.rows.all)]).collect()
    }

    fn has_weights(&self) -> bool {
        let is_trained =
            |shard: &ShardNorm| shard.weights.query.is_trained() || shard.weights.key.is_trained();
        self.shards.iter().any(is_trained)
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let mut values = Vec::with_capacity(self.shards.len());
        let mut sums = Vec::with_capacity(self.shards.len());
        for (shard, gradient) in self.shards.iter_mut().zip(outputs) {
            let gradient = gradient.ok_or(AutogradError::NotRecorded)?;
            let [queries, keys, of_values] = divided(&gradient, self.heads)?;
            let gradients = [queries, keys];
            sums.push(shard.products(&self.rows, &gradients)?);
            shard.gradients = Some(gradients);
            values.push(of_values);
        }
        let sums = self.ranks.sum(sums, Request::new(Category::ActivationGradient, OPERATOR))?;
        let input = |(shard, values): (&ShardNorm, Tensor)| {
            let Some([queries, keys]) = &shard.gradients else { return Err(missing()) };
            Ok(Some(shard.backward_input(&self.rows, [queries, keys, &values], &sums)?))
        };
        let inputs = self.shards.iter().zip(values).map(input);
        Ok(inputs.collect::<tensor::Result<Vec<_>>>()?)
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        for shard in &self.shards {
            for part in [1, 0] {
                shard.backward_weight(&self.rows, part, sink)?;
            }
        }
        Ok(())
    }
}

fn missing() -> TensorError {
    TensorError::Count { operator: OPERATOR, actual: 0, expected: 1 }
}
