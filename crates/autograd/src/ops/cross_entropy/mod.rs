//! Mean cross-entropy of scores against classes.

mod class_shards;
mod rule;

use collective::Axis;
use tensor::Tensor;
use tensor::ops;
use tensor::ops::cross_entropy::Scores;
use tensor::ops::linear_cross_entropy::{Output, Settings, divided};

use super::cast::autocast_all;
use super::named;
use crate::error::{AutogradError, Result};
use crate::sharded::{Dimension, Placement, Source, Var};
use crate::tape::Tape;

pub(super) use class_shards::ClassShards;
pub use rule::CrossEntropyRule;
use rule::{Gradient, OPERATOR};

/// Computes the mean cross-entropy over the pass's rows, times `scale`. `logits_tv` is `[.., classes]`, whose
/// columns may be in shards. `targets_t` has one u32 per row, or mixtures of classes as in
/// [`MIXED`](tensor::ops::soft_cross_entropy::MIXED). Applies the pass's label smoothing. If the pass has
/// answer pairs, computes their loss and figures instead.
///
/// # Errors
/// Shapes or dtypes do not agree, memory is exhausted, or a collective failed.
pub fn cross_entropy(tape: &Tape, logits_tv: Var, targets_t: &Tensor, scale: f32) -> Result<Var> {
    sum_of_pieces(tape, logits_tv, (targets_t, scale), |logits_tv, (targets_t, scale)| {
        let classes = logits_tv.tensor().shape().columns();
        let settings = Settings { scale, soft_cap: None, pieces: 1 };
        cross_entropy_of_scores(tape, (logits_tv, classes), targets_t, settings)
    })
}

/// [`cross_entropy`] of one piece of sequences, or of whole sequences. Applies the soft cap only to scores in
/// shards; others must already be capped. The scores have `classes` classes, per shard, and their rows may be
/// padded ([`padded_linear`](super::padded_linear())).
pub fn cross_entropy_of_scores(
    tape: &Tape,
    (scores, classes): (Var, usize),
    targets_t: &Tensor,
    settings: Settings,
) -> Result<Var> {
    let shards = match scores.placement(Axis::Tensor) {
        Placement::Shard(Dimension::Columns { shards }) => Some((shards, settings)),
        // The loss of answer pairs needs the losses of all rows first, like a loss in shards.
        _ if tape.pass().preference.is_some() => Some((1, Settings { soft_cap: None, ..settings })),
        _ => None,
    };
    let mut scores: Vec<Var> = scores.into_blocks().collect();
    if shards.is_none() {
        autocast_all(tape, OPERATOR, &mut scores)?;
    }
    tape.begin(OPERATOR)?;
    let source = if shards.is_some() { Var::block_source } else { Var::source };
    let sources: Vec<Source> = scores.iter().map(source).collect();
    let with_gradient = tape.is_recording() && scores.iter().any(Var::wants_gradient);
    let scores: Vec<Tensor> = scores.into_iter().map(Var::into_tensor).collect();
    let (loss, rule) = match shards {
        Some((shards, settings)) => {
            let shards = ClassShards::new(tape, [scores.len(), shards], classes);
            loss_of_shards(tape, scores, shards, targets_t, settings)?
        }
        None => whole_loss(tape, (scores, classes), targets_t, settings.scale, with_gradient)?,
    };
    tape.record_one(&sources, loss, || rule)
}

/// Computes the loss of whole scores and its gradient, which overwrites the scores if no other tensor shares
/// their storage.
fn whole_loss(
    tape: &Tape,
    (scores, classes): (Vec<Tensor>, usize),
    targets_t: &Tensor,
    scale: f32,
    with_gradient: bool,
) -> Result<(Tensor, CrossEntropyRule)> {
    let [tensor] = scores.try_into().map_err(|_| AutogradError::Blocks { expected: 1 })?;
    let scores = Scores { tensor, classes };
    let loss_scale = tape.pass().loss_scale.clone();
    let smoothing = tape.pass().label_smoothing;
    let is_soft =
        smoothing > 0.0 || ops::soft_cross_entropy::is_mixed(targets_t, scores.tensor.shape().rows());
    let factor = loss_scale.as_ref().map(|factor| &factor.scale);
    let mean = tape.pass().mean(scale);
    let forward = match is_soft {
        true => ops::soft_cross_entropy::forward(scores, targets_t, smoothing, mean, with_gradient),
        false => ops::cross_entropy::forward_mean(scores, targets_t, mean, with_gradient, factor),
    };
    let ops::cross_entropy::Output { loss, gradient } = named(OPERATOR, forward)?;
    let scores = Vec::from_iter(gradient);
    Ok((loss, CrossEntropyRule { scores, gradient: Gradient::InForward { loss_scale, is_scaled: !is_soft } }))
}

/// Computes the loss of logits split into vocabulary shards; `scores` are the local ones.
fn loss_of_shards(
    tape: &Tape,
    scores: Vec<Tensor>,
    shards: ClassShards,
    targets_t: &Tensor,
    settings: Settings,
) -> Result<(Tensor, CrossEntropyRule)> {
    let loss = shards.loss((tape, OPERATOR), targets_t, settings.scale, |shard, statistics| {
        divided::statistics(&scores[shard], targets_t, shards.run(shard), settings.soft_cap, statistics)
    });
    let Output { loss, statistics } = loss?;
    let targets_t = targets_t.clone();
    let scale = tape.pass().mean(settings.scale).scale;
    let settings = Settings { scale, ..settings };
    let gradient = Gradient::InBackward { shards, targets: targets_t, statistics, settings };
    Ok((loss, CrossEntropyRule { scores, gradient }))
}

/// Calls `loss` for each piece of `x` with the piece's targets and its share of `scale`, and returns the sum
/// of the losses. For whole sequences, calls it once with all targets.
///
/// # Errors
/// `loss` or a collective failed.
pub fn sum_of_pieces<E: From<AutogradError>>(
    tape: &Tape,
    x: Var,
    (targets, scale): (&Tensor, f32),
    loss: impl FnMut(Var, (&Tensor, f32)) -> std::result::Result<Var, E>,
) -> std::result::Result<Var, E> {
    let here = tape.pieces().map_or(&[][..], |pieces| &pieces.here);
    let shares: Vec<f32> = here.iter().map(|piece| piece.share).collect();
    sum_of_shares(tape, x, (targets, &shares, scale), loss)
}

/// [`sum_of_pieces`] with the shares of local pieces.
pub fn sum_of_shares<E: From<AutogradError>>(
    tape: &Tape,
    x: Var,
    (targets, shares, scale): (&Tensor, &[f32], f32),
    mut loss: impl FnMut(Var, (&Tensor, f32)) -> std::result::Result<Var, E>,
) -> std::result::Result<Var, E> {
    let (Some(pieces), Placement::Shard(_)) = (tape.pieces(), x.placement(Axis::Context)) else {
        return loss(x, (targets, scale));
    };
    let rows = targets.elements() / pieces.here.len();
    let losses = x.each_piece(tape, |index, x| {
        let targets = targets.view(index * rows, [rows]).map_err(AutogradError::from)?;
        loss(x, (&targets, scale * shares[index]))
    })?;
    let losses = losses
        .with_placement(Axis::Tensor, Placement::Replicate)
        .with_placement(Axis::Context, Placement::Partial);
    Ok(losses.redistribute(tape, Axis::Context, Placement::Replicate)?)
}
