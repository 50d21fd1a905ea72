//! The edges of a tensor-parallel layer: a copy of its input for each shard, and the sum of the shards'
//! results.

use collective::Axis;
use device::{Category, DType, Request};
use tensor::{Shape, Tensor, ops};

use super::placement::{Dimension, Placement};
use super::ranks::TensorRanks;
use super::var::{Source, Var};
use crate::error::{AutogradError, Result};
use crate::ops::{autocast, named, only, values_of};
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sink::{GradientSink, ready, target};
use crate::tape::Tape;
use crate::weight::Weight;

const COPY: &str = "copy_to_shards";
const SUM: &str = "sum_shards";

impl Var {
    /// Returns a copy of the value for each of the `shards` local shards of a layer ([`Placement::Copied`]).
    /// Sharded rows are gathered. Backward sums the gradients over all shards.
    pub fn copied(self, tape: &Tape, shards: usize) -> Result<Self> {
        if self.placements().tensor == Placement::Copied {
            return Ok(self);
        }
        let copies = self.by_piece(tape, |mut parts| {
            let x = parts.pop().ok_or(AutogradError::NotRecorded)?;
            copy_to_shards(tape, x, shards)
        })?;
        let placements = copies.first().map(Var::placements).unwrap_or_default();
        let all = Var::from_blocks(copies.into_iter().flat_map(Var::into_blocks));
        let all = all.ok_or(AutogradError::NotRecorded)?.with_placements(placements);
        Ok(all.with_placement(Axis::Tensor, Placement::Copied))
    }

    /// Sums the blocks of all shards of a layer ([`Placement::Partial`]), adds `bias`, and rounds once to
    /// `dtype`. Returns all rows, or with `shards_rows` the local rows.
    pub fn summed(
        self,
        tape: &Tape,
        (bias, dtype): (Option<&Weight>, DType),
        shards_rows: bool,
    ) -> Result<Self> {
        let dims = self.tensor().shape();
        let time = dims.dims().iter().rev().nth(1).copied().unwrap_or(1);
        let sum = self.by_piece(tape, |parts| sum_shards(tape, parts, (bias, dtype), shards_rows))?;
        let rows = Placement::Shard(Dimension::Rows { time });
        Ok(sum.with_placement(Axis::Tensor, if shards_rows { rows } else { Placement::Replicate }))
    }
}

/// Backward of [`Var::copied`]: sums the copies' gradients in a fixed tree. f32 gradients are rounded once;
/// others are added in their dtype.
#[derive(Debug)]
struct CopyRule {
    ranks: TensorRanks,
    shape: Shape,
    dtype: DType,
}

/// Returns one copy of all rows of `x`, of one block, for each of the `shards` local shards, as sequences.
/// Sharded rows are gathered.
///
/// # Errors
/// The rows do not form sequences, memory is exhausted, or a collective failed.
fn copy_to_shards(tape: &Tape, x: Var, shards: usize) -> Result<Vec<Var>> {
    let [x] = autocast(tape, COPY, [x])?;
    tape.begin(COPY)?;
    let time = match x.placements().tensor {
        Placement::Shard(Dimension::Rows { time }) => Some(time),
        _ => None,
    };
    let ranks = TensorRanks::new(tape, time.is_some());
    let source = x.block_source();
    let x = x.into_tensor();
    let shape = x.shape();
    let dtype = x.dtype();
    let all = ranks.gather_rows(&x, Request::new(Category::Activation, COPY))?;
    let all = match time {
        Some(time) if all.shape() != shape => {
            all.reshape([all.shape().rows() / time, time, all.shape().columns()])?
        }
        _ => all,
    };
    tape.record(&[source], vec![all; shards], || CopyRule { ranks, shape, dtype })
}

impl Rule for CopyRule {
    fn operator(&self) -> &'static str {
        COPY
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        Vec::new()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let request = Request::new(Category::ActivationGradient, COPY);
        let parts = outputs.into_iter().collect::<Option<Vec<_>>>().ok_or(AutogradError::NotRecorded)?;
        let sum = match parts.iter().all(|part| part.dtype() == DType::F32) {
            true => self.ranks.rounded_sum_rows(parts, None, self.dtype, request)?,
            false => self.ranks.sum_rows(parts, request)?,
        };
        Ok(vec![Some(sum.reshape(self.shape)?)])
    }
}

/// Backward of [`Var::summed`]: every shard gets the output's gradient.
#[derive(Debug)]
struct SumRule {
    ranks: TensorRanks,
    shards: usize,
    /// Shape of a shard's result.
    shape: Shape,
    bias: Option<Weight>,
    /// The gradient of all rows, kept between the input and weight halves of backward, if the bias is
    /// trained.
    gradient: Option<Tensor>,
}

/// Sums `parts`, f32 results `[.., width]` of the local shards, over all shards in a fixed tree, adds `bias
/// [width]`, and rounds once to `dtype`. With `shards_rows`, returns the local rows, `[rows, width]`.
///
/// # Errors
/// There is no part, shapes or dtypes do not agree, memory is exhausted, or a collective failed.
fn sum_shards(
    tape: &Tape,
    parts: Vec<Var>,
    (bias, dtype): (Option<&Weight>, DType),
    shards_rows: bool,
) -> Result<Var> {
    tape.begin(SUM)?;
    let ranks = TensorRanks::new(tape, shards_rows);
    let shards = parts.len();
    let dtype = tape.pass().autocast.as_ref().map_or(dtype, |autocast| autocast.half);
    let sources: Vec<Source> = parts.iter().map(Var::block_source).collect();
    let parts: Vec<Tensor> = parts.into_iter().map(Var::into_tensor).collect();
    let shape = parts.first().map_or(Shape::from([0]), Tensor::shape);
    let request = Request::new(Category::Activation, SUM);
    let output = match (tape.reads_output(), parts.first()) {
        // Nothing reads the output of a recomputed segment.
        (false, Some(part)) => Tensor::empty(part.device(), ranks.rows_here(part), dtype, request)?,
        _ => {
            let bias = named(SUM, values_of(bias, dtype))?;
            ranks.rounded_sum_rows(parts, bias.as_ref(), dtype, request)?
        }
    };
    let bias = bias.cloned();
    tape.record_one(&sources, output, || SumRule { ranks, shards, shape, bias, gradient: None })
}

impl Rule for SumRule {
    fn operator(&self) -> &'static str {
        SUM
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        Vec::new()
    }

    fn has_weights(&self) -> bool {
        self.bias.as_ref().is_some_and(Weight::is_trained)
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let request = Request::new(Category::ActivationGradient, SUM);
        let gradient = self.ranks.gather_rows(&only(outputs)?, request)?.reshape(self.shape)?;
        self.gradient = self.has_weights().then(|| gradient.clone());
        Ok(vec![Some(gradient); self.shards])
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let (Some(gradient), Some(bias)) = (&self.gradient, &self.bias) else { return Ok(()) };
        if let Some(target) = target(sink, bias)? {
            ops::linear::backward_bias(gradient, &target)?;
        }
        ready(sink, bias)
    }
}
