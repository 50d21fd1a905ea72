//! Cross-entropy with classes in shards. Only statistics of rows are gathered from other ranks.

use device::{Category, DType, Request};
use tensor::Tensor;
use tensor::ops::linear_cross_entropy::divided::{self, ClassRun};
use tensor::ops::linear_cross_entropy::{Output, Statistics};
use tensor::ops::preference::{self, Sequences};

use super::super::named;
use crate::error::Result;
use crate::pass::PreferencePass;
use crate::sharded::TensorRanks;
use crate::tape::Tape;

/// The local shards of a loss's classes.
#[derive(Clone, Copy, Debug)]
pub(in crate::ops) struct ClassShards {
    /// Index of the first local shard among all shards.
    first: usize,
    here: usize,
    all: usize,
    /// Number of classes per shard.
    classes: usize,
}

impl ClassShards {
    /// Describes the `here` local shards of `all` shards of `classes` classes each.
    pub(in crate::ops) fn new(tape: &Tape, [here, all]: [usize; 2], classes: usize) -> Self {
        ClassShards { first: TensorRanks::new(tape, false).first_shard(here), here, all, classes }
    }

    /// Returns the range of classes of a local shard.
    pub(in crate::ops) fn run(&self, shard: usize) -> ClassRun {
        let ClassShards { first, all, classes, .. } = *self;
        ClassRun { first: (first + shard) * classes, classes, vocabulary: all * classes }
    }

    /// Returns the pass's mean loss over rows times `scale`, a scalar, or the loss of its answer pairs.
    /// `write` computes the statistics `[3, rows]` f32 of a shard.
    ///
    /// # Errors
    /// `write` or a collective failed; errors of [`divided::merge`] and [`preference::forward`].
    pub(in crate::ops) fn loss(
        &self,
        (tape, operator): (&Tape, &'static str),
        targets: &Tensor,
        scale: f32,
        write: impl Fn(usize, &Tensor) -> tensor::Result<()>,
    ) -> Result<Output> {
        let rows = targets.elements();
        let request = Request::new(Category::Activation, operator);
        let own = Tensor::empty(targets.device(), [self.here, 3, rows], DType::F32, request)?;
        for shard in 0..self.here {
            named(operator, write(shard, &own.view(shard * 3 * rows, [3, rows])?))?;
        }
        let all = TensorRanks::new(tape, false).gather(own, request)?;
        named(operator, merged_loss(tape, &all, targets, self.classes, scale))
    }
}

/// Merges the statistics of all shards, `parts [shards, 3, rows]` of `classes` classes each. Returns the mean
/// loss over rows. If the pass has answer pairs, returns their loss and figures ([`preference::VALUES`]);
/// without an objective, the score of each answer.
fn merged_loss(
    tape: &Tape,
    parts: &Tensor,
    targets: &Tensor,
    classes: usize,
    scale: f32,
) -> tensor::Result<Output> {
    let Some(PreferencePass { answers, reference, objective }) = &tape.pass().preference else {
        return divided::merge(parts, targets, classes, tape.pass().mean(scale));
    };
    let rows = divided::merge_rows(parts, targets, classes)?;
    let losses = Statistics::losses_of(&rows)?;
    let sequences = Sequences { losses: &losses, targets, answers };
    let Some(objective) = objective else {
        let loss = preference::scores(sequences)?;
        return Ok(Output { loss, statistics: Statistics::weighted(rows, None)? });
    };
    let count = tape.pass().target_count.as_ref();
    let preference::Output { values, weights } =
        preference::forward(sequences, reference.as_ref(), *objective, scale, count)?;
    Ok(Output { loss: values, statistics: Statistics::weighted(rows, Some(weights))? })
}
