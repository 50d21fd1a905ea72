//! Mean cross-entropy of scores against classes.

mod rows;
mod sharded;
mod whole;

use collective::Axis;
use tensor::Tensor;
use tensor::ops::linear_cross_entropy::Settings;

use crate::error::{AutogradError, Result};
use crate::sharded::{Dimension, Placement, Var};
use crate::tape::Tape;

pub(super) use rows::merged_loss;
pub use sharded::ShardedCrossEntropyRule;
pub use whole::CrossEntropyRule;

/// The pass's mean over rows, times `scale`; `logits` is `[.., classes]`, whose columns may be in shards, and
/// `targets` has one u32 per row, or for mixtures of classes
/// [`MIXED`](tensor::ops::soft_cross_entropy::MIXED). The pass's label smoothing applies; of a pass of pairs
/// of answers, it is their loss with its figures.
///
/// # Errors
/// Shapes or types that do not agree; out of memory; a failed collective.
pub fn cross_entropy(tape: &Tape, logits: Var, targets: &Tensor, scale: f32) -> Result<Var> {
    sum_of_pieces(tape, logits, (targets, scale), |logits, (targets, scale)| {
        cross_entropy_of_scores(tape, logits, targets, Settings { scale, soft_cap: None, pieces: 1 })
    })
}

/// [`cross_entropy`] of one piece of sequences, or of whole ones. Scores in shards are capped here; the
/// caller has capped others.
///
/// # Errors
/// As [`cross_entropy`].
pub fn cross_entropy_of_scores(
    tape: &Tape,
    scores: Var,
    targets: &Tensor,
    settings: Settings,
) -> Result<Var> {
    match scores.placement(Axis::Tensor) {
        Placement::Shard(Dimension::Columns { shards }) => {
            sharded::cross_entropy(tape, scores.into_blocks().collect(), shards, targets, settings)
        }
        // The loss of pairs needs the losses of all rows first, as one of shards does.
        _ if tape.pass().preference.is_some() => {
            let settings = Settings { soft_cap: None, ..settings };
            sharded::cross_entropy(tape, vec![scores], 1, targets, settings)
        }
        _ => whole::cross_entropy(tape, scores, targets, settings.scale),
    }
}

/// Returns the sum of the losses that `loss` computes for each piece of sequences that `x` has, with the
/// piece's targets and with its share of `scale`; for whole sequences, that of all targets.
///
/// # Errors
/// Errors of `loss`; a failed collective.
pub fn sum_of_pieces<E: From<AutogradError>>(
    tape: &Tape,
    x: Var,
    (targets, scale): (&Tensor, f32),
    mut loss: impl FnMut(Var, (&Tensor, f32)) -> std::result::Result<Var, E>,
) -> std::result::Result<Var, E> {
    let (Some(pieces), Placement::Shard(_)) = (tape.pieces(), x.placement(Axis::Context)) else {
        return loss(x, (targets, scale));
    };
    let rows = targets.elements() / pieces.here.len();
    let losses = x.each_piece(tape, |index, x| {
        let targets = targets.view(index * rows, [rows]).map_err(AutogradError::from)?;
        loss(x, (&targets, scale * pieces.here[index].share))
    })?;
    let losses = losses
        .with_placement(Axis::Tensor, Placement::Replicate)
        .with_placement(Axis::Context, Placement::Partial);
    Ok(losses.redistribute(tape, Axis::Context, Placement::Replicate)?)
}
