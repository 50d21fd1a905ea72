//! The output head of a language model with its mean cross-entropy, whose scores are computed in pieces of
//! the vocabulary.

mod sharded;
mod whole;

use tensor::Tensor;
use tensor::ops::linear_cross_entropy::Settings;

use crate::error::{AutogradError, Result};
use crate::sharded::Var;
use crate::tape::Tape;
use crate::weight::Weight;

pub use sharded::ShardedLinearCrossEntropyRule;
pub use whole::LinearCrossEntropyRule;

/// The pass's mean, times `settings.scale`, of the cross-entropy of the scores `x · weightᵀ` against
/// `targets`, or the loss of the pass's pairs of answers with its figures, of one piece of sequences or of
/// whole ones: `x` is `[.., in]`, `targets` has one u32 per row. The head has `shards` equal runs of classes,
/// of which `weights`, `[classes, in]` each, are here; with several, `x` has a copy for each.
///
/// # Errors
/// Shapes or types that do not agree; out of memory; a failed collective.
pub fn linear_cross_entropy(
    tape: &Tape,
    x: Var,
    (weights, shards): (&[Weight], usize),
    targets: &Tensor,
    settings: Settings,
) -> Result<Var> {
    match weights {
        // The loss of pairs needs the losses of all rows first, as one of shards does.
        [weight] if shards == 1 && tape.pass().preference.is_none() => {
            whole::linear_cross_entropy(tape, x, weight, targets, settings)
        }
        [] => Err(AutogradError::NotRecorded),
        _ => {
            let copies = x.into_blocks().collect();
            sharded::linear_cross_entropy(tape, copies, weights, shards, targets, settings)
        }
    }
}
