//! Splitting values into local sequence pieces, joining pieces, and summing them.

use collective::{Axis, tensors};
use device::{Category, Request};
use tensor::Tensor;

use super::pieces::{Pieces, part};
use super::ranks::tree_sum;
use super::var::{Source, Var};
use crate::error::{AutogradError, Result};
use crate::ops::{autocast, only};
use crate::rule::{Rule, Saved, ValueGradients};
use crate::tape::Tape;

/// Backward of the operators of this file, which save no tensors.
#[derive(Debug)]
enum PieceRule {
    Split,
    /// The join of this many pieces.
    Join(usize),
    /// The sum of this many pieces.
    Sum(usize),
}

/// Splits `x [rows, ..]`, of one block, into pieces: views of equal runs of rows.
///
/// # Errors
/// The tape has no pieces.
pub(super) fn split_pieces(tape: &Tape, x: Var) -> Result<Vec<Var>> {
    let operator = PieceRule::Split.operator();
    let [x] = autocast(tape, operator, [x])?;
    tape.begin(operator)?;
    let parts = tape.pieces().ok_or(AutogradError::NotRecorded)?.here.len();
    let pieces = (0..parts).map(|index| part(x.tensor(), index, parts)).collect::<Result<Vec<_>>>()?;
    tape.record(&[x.block_source()], pieces, || PieceRule::Split)
}

/// Concatenates the rows of all `pieces`; the inverse of [`split_pieces`].
///
/// # Errors
/// There is no piece, or memory is exhausted.
pub(super) fn join_pieces(tape: &Tape, pieces: Vec<Var>) -> Result<Var> {
    let sources: Vec<Source> = pieces.iter().map(Var::block_source).collect();
    let rule = PieceRule::Join(sources.len());
    tape.begin(rule.operator())?;
    let pieces = pieces.into_iter().map(Var::into_tensor).collect();
    let joined = joined(pieces, Request::new(Category::Activation, rule.operator()))?;
    tape.record_one(&sources, joined, || rule)
}

/// Sums `pieces`, f32 scalars of the local pieces; with [`Pieces::sums_over_ranks`], also over the other
/// ranks.
///
/// # Errors
/// There is no piece, memory is exhausted, or a collective failed.
pub(super) fn sum_pieces(tape: &Tape, pieces: Vec<Var>) -> Result<Var> {
    let sources: Vec<Source> = pieces.iter().map(Var::block_source).collect();
    let rule = PieceRule::Sum(sources.len());
    let operator = rule.operator();
    tape.begin(operator)?;
    let mut sum = tree_sum(pieces.into_iter().map(Var::into_tensor).collect())?;
    if let (Some(Pieces { sums_over_ranks: true, .. }), Some(group)) =
        (tape.pieces(), tape.pass().groups.along(Axis::Context))
    {
        let failed = |source| AutogradError::Collective { operator, source };
        let request = Request::new(Category::Activation, operator);
        sum = tensors::all_reduce(&sum, group, request).map_err(failed)?;
    }
    tape.record_one(&sources, sum, || rule)
}

/// Concatenates the rows of `pieces`, all of one shape.
pub(crate) fn joined(pieces: Vec<Tensor>, request: Request) -> Result<Tensor> {
    let first = pieces.first().ok_or(AutogradError::NotRecorded)?;
    let rows = first.shape().dims().first().copied().unwrap_or(1) * pieces.len();
    let shape = first.shape().with(0, rows).unwrap_or(first.shape());
    let all = Tensor::empty(first.device(), shape, first.dtype(), request)?;
    let parts = pieces.len();
    pieces
        .iter()
        .enumerate()
        .try_for_each(|(index, piece)| -> Result<()> { Ok(part(&all, index, parts)?.copy_from(piece)?) })?;
    Ok(all)
}

impl Rule for PieceRule {
    fn operator(&self) -> &'static str {
        match self {
            PieceRule::Split => "split_pieces",
            PieceRule::Join(_) => "join_pieces",
            PieceRule::Sum(_) => "sum_pieces",
        }
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        Vec::new()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        match self {
            PieceRule::Split => {
                let pieces = outputs.into_iter().collect::<Option<Vec<_>>>();
                let request = Request::new(Category::ActivationGradient, self.operator());
                Ok(vec![Some(joined(pieces.ok_or(AutogradError::NotRecorded)?, request)?)])
            }
            PieceRule::Join(parts) => {
                let gradient = only(outputs)?;
                let parts = *parts;
                (0..parts).map(|index| part(&gradient, index, parts).map(Some)).collect()
            }
            PieceRule::Sum(parts) => Ok(vec![Some(only(outputs)?); *parts]),
        }
    }
}
