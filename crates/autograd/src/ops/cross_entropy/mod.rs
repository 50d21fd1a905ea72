//! Mean cross-entropy of scores against classes.

mod class_shards;
mod rule;

use collective::Axis;
use tensor::Tensor;
use tensor::ops;
use tensor::ops::linear_cross_entropy::{Output, Settings, divided};

use super::cast::autocast_all;
use super::named;
use crate::error::{AutogradError, Result};
use crate::sharded::{Dimension, Placement, Source, Var};
use crate::tape::Tape;

pub(super) use class_shards::ClassShards;
pub use rule::CrossEntropyRule;
use rule::{Gradient, OPERATOR};

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
pub fn cross_entropy_of_scores(
    tape: &Tape,
    scores: Var,
    targets: &Tensor,
    settings: Settings,
) -> Result<Var> {
    let shards = match scores.placement(Axis::Tensor) {
        Placement::Shard(Dimension::Columns { shards }) => Some((shards, settings)),
        // The loss of pairs needs the losses of all rows first, as one of shards does.
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
        Some((shards, settings)) => loss_of_shards(tape, scores, shards, targets, settings)?,
        None => whole_loss(tape, scores, targets, settings.scale, with_gradient)?,
    };
    tape.record_one(&sources, loss, || rule)
}

/// The loss of whole scores and its gradient, which overwrites the scores if no other tensor shares their
/// storage.
fn whole_loss(
    tape: &Tape,
    scores: Vec<Tensor>,
    targets: &Tensor,
    scale: f32,
    with_gradient: bool,
) -> Result<(Tensor, CrossEntropyRule)> {
    let [scores] = scores.try_into().map_err(|_| AutogradError::Blocks { expected: 1 })?;
    let loss_scale = tape.pass().loss_scale.clone();
    let smoothing = tape.pass().label_smoothing;
    let is_soft = smoothing > 0.0 || ops::soft_cross_entropy::is_mixed(targets, scores.shape().rows());
    let factor = loss_scale.as_ref().map(|factor| &factor.scale);
    let mean = tape.pass().mean(scale);
    let forward = match is_soft {
        true => ops::soft_cross_entropy::forward(scores, targets, smoothing, mean, with_gradient),
        false => ops::cross_entropy::forward_mean(scores, targets, mean, with_gradient, factor),
    };
    let ops::cross_entropy::Output { loss, gradient } = named(OPERATOR, forward)?;
    let scores = Vec::from_iter(gradient);
    Ok((loss, CrossEntropyRule { scores, gradient: Gradient::InForward { loss_scale, is_scaled: !is_soft } }))
}

/// Loss of logits split into `shards` vocabulary shards, of which `scores` are the local ones.
fn loss_of_shards(
    tape: &Tape,
    scores: Vec<Tensor>,
    shards: usize,
    targets: &Tensor,
    settings: Settings,
) -> Result<(Tensor, CrossEntropyRule)> {
    let classes = scores.first().ok_or(AutogradError::NotRecorded)?.shape().columns();
    let shards = ClassShards::new(tape, [scores.len(), shards], classes);
    let loss = shards.loss((tape, OPERATOR), targets, settings.scale, |shard, statistics| {
        divided::statistics(&scores[shard], targets, shards.run(shard), settings.soft_cap, statistics)
    });
    let Output { loss, statistics } = loss?;
    let targets = targets.clone();
    let scale = tape.pass().mean(settings.scale).scale;
    let settings = Settings { scale, ..settings };
    let gradient = Gradient::InBackward { shards, targets, statistics, settings };
    Ok((loss, CrossEntropyRule { scores, gradient }))
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
