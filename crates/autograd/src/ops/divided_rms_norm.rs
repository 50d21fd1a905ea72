//! RMS normalisation of groups of columns that are divided into shards.

use device::{Category, DType, Request};
use tensor::Tensor;
use tensor::ops::divided_norm::{self, Saved as Operands};
use tensor::ops::rms_norm;

use super::cast::autocast_all;
use super::named;
use crate::error::{AutogradError, Result};
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Source, TensorRanks, Var};
use crate::sink::{GradientSink, give_gradient};
use crate::tape::Tape;
use crate::weight::Weight;

const OPERATOR: &str = "divided_rms_norm";

/// The columns that a mean square covers.
#[derive(Clone, Copy, Debug)]
pub struct NormSpan {
    /// Number of groups of consecutive columns in a row.
    pub groups: usize,
    /// Columns of a group.
    pub columns: usize,
    /// Number of shards of a row, a multiple of the groups.
    pub shards: usize,
}

/// Backward of [`divided_rms_norm`].
#[derive(Debug)]
pub struct DividedRmsNormRule {
    /// Input and weight of each local shard.
    shards: Vec<(Tensor, Weight)>,
    /// Gradients of the local shards' outputs, kept between the input and weight halves of backward.
    gradients: Vec<Tensor>,
    /// Reciprocal standard deviations of the rows of each group, f32 `[groups, rows]`.
    rstd: Tensor,
    span: NormSpan,
    ranks: TensorRanks,
}

/// RMS-normalises each group of columns in the rows of `x [.., columns of a shard]`. Sums of squares of a
/// group's shards are added in a fixed tree. `weights` has one weight per local shard.
///
/// # Errors
/// Shapes or dtypes do not agree, memory is exhausted, or a collective failed.
pub fn divided_rms_norm(
    tape: &Tape,
    x: Var,
    weights: &[&Weight],
    span: NormSpan,
    epsilon: f32,
) -> Result<Var> {
    x.each_piece(tape, |_, x| {
        let normalised = one_piece(tape, x.into_blocks().collect(), weights, span, epsilon)?;
        Var::from_blocks(normalised).ok_or(AutogradError::NotRecorded)
    })
}

/// Normalises one piece of sequences, or whole sequences; `x` has one entry per local shard.
fn one_piece(
    tape: &Tape,
    mut x: Vec<Var>,
    weights: &[&Weight],
    span: NormSpan,
    epsilon: f32,
) -> Result<Vec<Var>> {
    autocast_all(tape, OPERATOR, &mut x)?;
    tape.begin(OPERATOR)?;
    let sources: Vec<Source> = x.iter().map(Var::block_source).collect();
    let inputs = x.into_iter().map(Var::into_tensor);
    let shards: Vec<_> = inputs.zip(weights.iter().map(|weight| (*weight).clone())).collect();
    let ranks = TensorRanks::new(tape, false);
    let squares = |index: usize, own: &Tensor| divided_norm::squares(&shards[index].0, own);
    let rstd = span.sum(&shards, &ranks, Category::Activation, squares)?;
    named(OPERATOR, divided_norm::rstd(&rstd, span.columns, epsilon))?;
    let first = ranks.first_shard(shards.len());
    let normalised = |(index, (x, weight)): (usize, &(Tensor, Weight))| {
        divided_norm::forward(x, &weight.values(x.dtype())?, &span.rows_of(&rstd, first + index)?)
    };
    let outputs = named(OPERATOR, shards.iter().enumerate().map(normalised).collect())?;
    let gradients = Vec::new();
    tape.record(&sources, outputs, || DividedRmsNormRule { shards, gradients, rstd, span, ranks })
}

impl NormSpan {
    /// Returns the row of `all [groups, rows]` of the group of shard `shard`.
    fn rows_of(self, all: &Tensor, shard: usize) -> tensor::Result<Tensor> {
        let rows = all.shape().columns();
        all.view(shard * self.groups / self.shards * rows, [rows])
    }

    /// Sums values of each row over the shards of each group, f32 `[groups, rows]`. `write` computes the
    /// values of one local shard.
    fn sum(
        self,
        shards: &[(Tensor, Weight)],
        ranks: &TensorRanks,
        category: Category,
        write: impl Fn(usize, &Tensor) -> tensor::Result<()>,
    ) -> Result<Tensor> {
        let request = Request::new(category, OPERATOR);
        let first = ranks.first_shard(shards.len());
        let part = |(index, (x, _)): (usize, &(Tensor, Weight))| {
            let shape = [self.groups, x.shape().rows()];
            let all = match self.groups {
                1 => Tensor::empty(x.device(), shape, DType::F32, request)?,
                _ => Tensor::zeros(x.device(), shape, DType::F32, request)?,
            };
            write(index, &self.rows_of(&all, first + index)?)?;
            Ok(all)
        };
        let parts = named(OPERATOR, shards.iter().enumerate().map(part).collect())?;
        ranks.sum(parts, request)
    }
}

impl Rule for DividedRmsNormRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let inputs = self.shards.iter().map(|(x, _)| Saved::new("x", x));
        inputs.chain([Saved::new("rstd", &self.rstd)]).collect()
    }

    fn has_weights(&self) -> bool {
        self.shards.iter().any(|(_, weight)| weight.is_trained())
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let outputs = outputs.into_iter().collect::<Option<Vec<_>>>().ok_or(AutogradError::NotRecorded)?;
        let span = self.span;
        let first = self.ranks.first_shard(outputs.len());
        let operands = |index: usize| {
            let (x, weight) = &self.shards[index];
            Ok::<_, tensor::TensorError>((
                x,
                weight.values(x.dtype())?,
                span.rows_of(&self.rstd, first + index)?,
            ))
        };
        let products = |index: usize, own: &Tensor| {
            let (x, weight, rstd) = operands(index)?;
            divided_norm::products(&outputs[index], Operands { x, weight: &weight, rstd: &rstd }, own)
        };
        let sums = span.sum(&self.shards, &self.ranks, Category::ActivationGradient, products)?;
        let input = |(index, dy): (usize, &Tensor)| {
            let (x, weight, rstd) = operands(index)?;
            let operands = Operands { x, weight: &weight, rstd: &rstd };
            let sums = span.rows_of(&sums, first + index)?;
            Ok(Some(divided_norm::backward_input(dy, operands, &sums, span.columns)?))
        };
        let gradients = outputs.iter().enumerate().map(input).collect::<Result<_>>()?;
        if self.has_weights() {
            self.gradients = outputs;
        }
        Ok(gradients)
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let first = self.ranks.first_shard(self.shards.len());
        for (index, ((x, weight), dy)) in self.shards.iter().zip(&self.gradients).enumerate().rev() {
            let rstd = self.span.rows_of(&self.rstd, first + index)?;
            give_gradient(sink, weight, |target| rms_norm::backward_weight(dy, x, &rstd, target))?;
        }
        Ok(())
    }
}
