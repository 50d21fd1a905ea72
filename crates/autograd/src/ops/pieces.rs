//! Variables of all pieces of sequences that are here, and their sums over pieces.

use collective::{Axis, tensors};
use device::{Category, Request};
use tensor::Tensor;

use super::lanes::tree_sum;
use super::{autocast, only};
use crate::error::{AutogradError, Result};
use crate::pieces::{Pieces, part};
use crate::rule::{Rule, Saved};
use crate::tape::{Source, Tape, Var};

/// Backward of the operators of this file, which save nothing.
#[derive(Debug)]
pub enum PieceRule {
    /// [`split_pieces`].
    Split,
    /// [`join_pieces`] of this many pieces.
    Join(usize),
    /// [`sum_pieces`] of this many pieces.
    Sum(usize),
}

/// Returns the pieces of `x [rows, ..]`, views of equal runs of rows.
///
/// # Errors
/// A tape without pieces.
pub fn split_pieces(tape: &Tape, x: Var) -> Result<Vec<Var>> {
    let [x] = autocast(tape, "piece_split", [x])?;
    tape.begin("piece_split")?;
    let parts = tape.pieces().ok_or(AutogradError::NotRecorded)?.here.len();
    let pieces = (0..parts).map(|index| part(x.tensor(), index, parts)).collect::<Result<Vec<_>>>()?;
    tape.record(&[x.source()], pieces, || PieceRule::Split)
}

/// Returns the rows of all `pieces`, the inverse of [`split_pieces`].
///
/// # Errors
/// No piece, out of memory.
pub fn join_pieces(tape: &Tape, pieces: Vec<Var>) -> Result<Var> {
    tape.begin("piece_join")?;
    let sources: Vec<Source> = pieces.iter().map(Var::source).collect();
    let parts = sources.len();
    let pieces = pieces.into_iter().map(Var::into_tensor).collect();
    let joined = joined(pieces, Request::new(Category::Activation, "piece_join"))?;
    tape.record_one(&sources, joined, || PieceRule::Join(parts))
}

/// Returns the sum of `pieces`, scalars f32 of the pieces that are here, and of those of other ranks if
/// [`Pieces::sums_over_ranks`].
///
/// # Errors
/// No piece, out of memory, a failed collective.
pub fn sum_pieces(tape: &Tape, pieces: Vec<Var>) -> Result<Var> {
    tape.begin("piece_sum")?;
    let sources: Vec<Source> = pieces.iter().map(Var::source).collect();
    let mut sum = tree_sum(pieces.into_iter().map(Var::into_tensor).collect())?;
    if let (Some(Pieces { sums_over_ranks: true, .. }), Some(plane)) =
        (tape.pieces(), tape.pass().planes.along(Axis::Context))
    {
        let of = |source| AutogradError::Collective { operator: "piece_sum", source };
        let request = Request::new(Category::Activation, "piece_sum");
        sum = tensors::all_reduce(&sum, &mut plane.clone(), request).map_err(of)?;
    }
    tape.record_one(&sources, sum, || PieceRule::Sum(sources.len()))
}

/// Copies the rows of `pieces`, of one shape, into one tensor.
fn joined(pieces: Vec<Tensor>, request: Request) -> Result<Tensor> {
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
            PieceRule::Split => "piece_split",
            PieceRule::Join(_) => "piece_join",
            PieceRule::Sum(_) => "piece_sum",
        }
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        Vec::new()
    }

    fn backward_input(
        &mut self,
        outputs: Vec<Option<Tensor>>,
        _wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        match self {
            PieceRule::Split => {
                let pieces = outputs.into_iter().collect::<Option<Vec<_>>>();
                let request = Request::new(Category::ActivationGradient, "piece_split");
                Ok(vec![Some(joined(pieces.ok_or(AutogradError::NotRecorded)?, request)?)])
            }
            PieceRule::Join(parts) => {
                let (gradient, parts) = (only(outputs)?, *parts);
                (0..parts).map(|index| part(&gradient, index, parts).map(Some)).collect()
            }
            PieceRule::Sum(parts) => Ok(vec![Some(only(outputs)?); *parts]),
        }
    }
}
