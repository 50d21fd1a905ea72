//! RMS normalisation of queries over all heads together, and of keys over all heads together.

use collective::Axis;
use device::{Category, DType, Request};
use tensor::Tensor;
use tensor::ops::attention::Heads;
use tensor::ops::divided_norm::{self, Saved as Operands};
use tensor::ops::{rearrange, rms_norm};

use super::cast::autocast_all;
use super::{QkNormWeights, named};
use crate::error::{AutogradError, Result};
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Placement, Source, TensorRanks, Var};
use crate::sink::{GradientSink, give_gradient};
use crate::tape::Tape;
use crate::weight::Weight;

const OPERATOR: &str = "row_qk_norm";
/// Index of the column dimension.
const COLUMNS: usize = 2;

/// Backward of [`row_qk_norm`].
#[derive(Debug)]
pub struct RowQkNormRule {
    /// The local shards of heads, or all heads as one.
    shards: Vec<ShardNorm>,
    heads: Heads,
    /// Reciprocal standard deviations of the rows of queries and of keys, f32 `[rows]` each.
    rstd: [Tensor; 2],
    /// Sums over shards; `None` if rows are whole.
    sums: Option<RowSums>,
}

/// Queries and keys of one shard before normalisation.
#[derive(Debug)]
struct ShardNorm {
    weights: QkNormWeights,
    parts: [Tensor; 2],
    /// Gradients of the normalised queries and keys, kept between the input and weight halves of backward.
    gradients: Option<[Tensor; 2]>,
}

/// Sums over the columns of all shards.
#[derive(Debug)]
struct RowSums {
    ranks: TensorRanks,
    /// Number of columns of all query heads, and of all key heads.
    columns: [usize; 2],
}

/// RMS-normalises the queries of all heads in each row of packed `qkv [batch, time, heads.packed_columns()]`,
/// and the keys likewise. Values are unchanged. The weights are `[columns]` each. If heads are in shards,
/// each block has the heads of one shard, `weights` has one entry per local shard, and `columns` counts the
/// query and key columns of all shards.
///
/// # Errors
/// Shapes or dtypes do not agree, memory is exhausted, or a collective failed.
pub fn row_qk_norm(
    tape: &Tape,
    qkv: Var,
    heads: Heads,
    weights: &[QkNormWeights],
    columns: [usize; 2],
    epsilon: f32,
) -> Result<Var> {
    let is_sharded = matches!(qkv.placement(Axis::Tensor), Placement::Shard(_));
    qkv.each_piece(tape, |_, qkv| {
        let sums = is_sharded.then(|| RowSums { ranks: TensorRanks::new(tape, false), columns });
        let normalised = one_piece(tape, qkv.into_blocks().collect(), heads, weights, sums, epsilon)?;
        Var::from_blocks(normalised).ok_or(AutogradError::NotRecorded)
    })
}

/// Normalises one piece of sequences, or whole sequences; each entry of `qkv` has the heads of one shard.
fn one_piece(
    tape: &Tape,
    mut qkv: Vec<Var>,
    heads: Heads,
    weights: &[QkNormWeights],
    sums: Option<RowSums>,
    epsilon: f32,
) -> Result<Vec<Var>> {
    autocast_all(tape, OPERATOR, &mut qkv)?;
    tape.begin(OPERATOR)?;
    let sources: Vec<Source> = qkv.iter().map(Var::block_source).collect();
    let mut shards = Vec::with_capacity(qkv.len());
    let mut values = Vec::with_capacity(qkv.len());
    for (qkv, weights) in qkv.into_iter().zip(weights) {
        let [queries, keys, of_values] = named(OPERATOR, divided(qkv.tensor(), heads))?;
        shards.push(ShardNorm { weights: weights.clone(), parts: [queries, keys], gradients: None });
        values.push(of_values);
    }
    let mut rstd = sums.as_ref().map(|sums| sums.rstd(&shards, epsilon)).transpose()?;
    let mut outputs = Vec::with_capacity(shards.len());
    for (shard, values) in shards.iter().zip(values) {
        let (output, of_rows) = named(OPERATOR, shard.forward(rstd.as_ref(), &values, epsilon))?;
        outputs.push(output);
        rstd = Some(of_rows);
    }
    let rstd = rstd.ok_or(AutogradError::NotRecorded)?;
    tape.record(&sources, outputs, || RowQkNormRule { shards, heads, rstd, sums })
}

/// Copies the columns of packed queries, keys and values into separate tensors.
fn divided(qkv: &Tensor, heads: Heads) -> tensor::Result<[Tensor; 3]> {
    let [query, key, value] = heads.groups_of_columns();
    let part = |first, count| rearrange::slice(qkv, COLUMNS, first, count);
    Ok([part(0, query)?, part(query, key)?, part(query + key, value)?])
}

/// Returns row `part` of `[2, rows]` as a view.
fn part_of(all: &Tensor, part: usize) -> tensor::Result<Tensor> {
    let rows = all.shape().columns();
    all.view(part * rows, [rows])
}

impl RowSums {
    /// Returns the statistics of queries and of keys, from the sums of squares of all shards.
    fn rstd(&self, shards: &[ShardNorm], epsilon: f32) -> Result<[Tensor; 2]> {
        let squares = |shard: &ShardNorm| {
            let of_part = |part: usize, sums: &Tensor| divided_norm::squares(&shard.parts[part], sums);
            shard.sums_of_rows(Category::Activation, of_part)
        };
        let squares = named(OPERATOR, shards.iter().map(squares).collect())?;
        let all = self.ranks.sum(squares, Request::new(Category::Activation, OPERATOR))?;
        let rstd = || {
            let parts = [part_of(&all, 0)?, part_of(&all, 1)?];
            for (part, columns) in parts.iter().zip(self.columns) {
                divided_norm::rstd(part, columns, epsilon)?;
            }
            Ok(parts)
        };
        named(OPERATOR, rstd())
    }
}

impl ShardNorm {
    fn weight(&self, part: usize) -> &Weight {
        if part == 0 { &self.weights.query } else { &self.weights.key }
    }

    /// Returns one f32 value for each row of queries and of keys, `[2, rows]`. `write` computes one part.
    fn sums_of_rows(
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

    /// Packs the normalised queries and keys with the values, and returns the statistics too. `rstd` are the
    /// statistics if rows are in shards.
    fn forward(
        &self,
        rstd: Option<&[Tensor; 2]>,
        values: &Tensor,
        epsilon: f32,
    ) -> tensor::Result<(Tensor, [Tensor; 2])> {
        let normalised = |part: usize| {
            let x = &self.parts[part];
            let weight = self.weight(part).values(x.dtype())?;
            match rstd {
                None => rms_norm::forward(x, &weight, epsilon).map(|result| (result.output, result.rstd)),
                Some(rstd) => Ok((divided_norm::forward(x, &weight, &rstd[part])?, rstd[part].clone())),
            }
        };
        let ((queries, query_rstd), (keys, key_rstd)) = (normalised(0)?, normalised(1)?);
        Ok((rearrange::concatenate(&[&queries, &keys, values], COLUMNS)?, [query_rstd, key_rstd]))
    }

    /// Computes this shard's part of the column sums that the gradient of sharded rows needs.
    fn products(&self, rstd: &[Tensor; 2], gradients: &[Tensor; 2]) -> tensor::Result<Tensor> {
        self.sums_of_rows(Category::ActivationGradient, |part, sums| {
            let x = &self.parts[part];
            let weight = self.weight(part).values(x.dtype())?;
            let operands = Operands { x, weight: &weight, rstd: &rstd[part] };
            divided_norm::products(&gradients[part], operands, sums)
        })
    }

    /// Computes the gradient of packed queries, keys and values. If rows are sharded, `sums` has the products
    /// and numbers of columns of all shards.
    fn backward_input(
        &self,
        rstd: &[Tensor; 2],
        values: &Tensor,
        sums: Option<&(Tensor, [usize; 2])>,
    ) -> Result<Tensor> {
        let gradients = self.gradients.as_ref().ok_or(AutogradError::NotRecorded)?;
        let input = |part: usize| {
            let dy = &gradients[part];
            let x = &self.parts[part];
            let rstd = &rstd[part];
            let weight = &self.weight(part).values(x.dtype())?;
            match sums {
                None => rms_norm::backward_input(dy, None, x, weight, rstd, false),
                Some((sums, columns)) => {
                    let operands = Operands { x, weight, rstd };
                    divided_norm::backward_input(dy, operands, &part_of(sums, part)?, columns[part])
                }
            }
        };
        Ok(rearrange::concatenate(&[&input(0)?, &input(1)?, values], COLUMNS)?)
    }
}

impl Rule for RowQkNormRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let parts = self.shards.iter().flat_map(|shard| ["queries", "keys"].into_iter().zip(&shard.parts));
        let rstd = ["query rstd", "key rstd"].into_iter().zip(&self.rstd);
        parts.chain(rstd).map(|(name, tensor)| Saved::new(name, tensor)).collect()
    }

    fn has_weights(&self) -> bool {
        self.shards.iter().any(|shard| shard.weights.query.is_trained() || shard.weights.key.is_trained())
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let mut values = Vec::with_capacity(self.shards.len());
        let mut products = Vec::new();
        for (shard, gradient) in self.shards.iter_mut().zip(outputs) {
            let gradient = gradient.ok_or(AutogradError::NotRecorded)?;
            let [queries, keys, of_values] = divided(&gradient, self.heads)?;
            let gradients = [queries, keys];
            if self.sums.is_some() {
                products.push(shard.products(&self.rstd, &gradients)?);
            }
            shard.gradients = Some(gradients);
            values.push(of_values);
        }
        let request = Request::new(Category::ActivationGradient, OPERATOR);
        let sums = match &self.sums {
            Some(RowSums { ranks, columns }) => Some((ranks.sum(products, request)?, *columns)),
            None => None,
        };
        let input = |(shard, values): (&ShardNorm, Tensor)| {
            shard.backward_input(&self.rstd, &values, sums.as_ref()).map(Some)
        };
        self.shards.iter().zip(values).map(input).collect()
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        for shard in &self.shards {
            for part in [1, 0] {
                give_gradient(sink, shard.weight(part), |target| match &shard.gradients {
                    Some(dy) => {
                        rms_norm::backward_weight(&dy[part], &shard.parts[part], &self.rstd[part], target)
                    }
                    None => Ok(()),
                })?;
            }
        }
        Ok(())
    }
}
