//! The mean of scores whose classes are in shards. Only statistics of rows are gathered.

use device::{Category, DType, Request};
use tensor::Tensor;
use tensor::ops::linear_cross_entropy::divided::{self, ClassRun};
use tensor::ops::linear_cross_entropy::{Output, Settings, Statistics};

use super::super::{named, only};
use super::rows::merged_loss;
use super::whole::OPERATOR;
use crate::error::{AutogradError, Result};
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Source, TensorRanks, Var};
use crate::tape::Tape;

/// Backward of [`cross_entropy`](super::cross_entropy()) of shards, which overwrites the scores.
#[derive(Debug)]
pub struct ShardedCrossEntropyRule {
    /// Number of the first shard that is here.
    first: usize,
    shards: usize,
    scores: Vec<Tensor>,
    targets: Tensor,
    statistics: Statistics,
    settings: Settings,
}

/// `settings.scale` times the mean over rows, or the loss of the pass's pairs of answers with its figures;
/// `scores` are those of the shards that are here, of `shards` in all, `[.., classes]` each, and `targets`
/// has one u32 per row, among all classes.
///
/// # Errors
/// No shard; as [`divided::statistics`] and [`divided::merge`]; a failed collective.
pub(super) fn cross_entropy(
    tape: &Tape,
    scores: Vec<Var>,
    shards: usize,
    targets: &Tensor,
    settings: Settings,
) -> Result<Var> {
    tape.begin(OPERATOR)?;
    let ranks = TensorRanks::new(tape, false);
    let sources: Vec<Source> = scores.iter().map(Var::block_source).collect();
    let scores: Vec<Tensor> = scores.into_iter().map(Var::into_tensor).collect();
    let classes = scores.first().ok_or(AutogradError::NotRecorded)?.shape().columns();
    let (first, rows, request) =
        (ranks.first_shard(scores.len()), targets.elements(), Request::new(Category::Activation, OPERATOR));
    let own = Tensor::empty(targets.device(), [scores.len(), 3, rows], DType::F32, request)?;
    for (shard, scores) in scores.iter().enumerate() {
        let of_shard = own.view(shard * 3 * rows, [3, rows])?;
        let run = ClassRun { first: (first + shard) * classes, vocabulary: shards * classes };
        named(OPERATOR, divided::statistics(scores, targets, run, settings.soft_cap, &of_shard))?;
    }
    let all = ranks.gather(own, request)?;
    let merged = merged_loss(tape, &all, targets, classes, settings.scale);
    let settings = Settings { scale: tape.pass().mean(settings.scale).scale, ..settings };
    let Output { loss, statistics } = named(OPERATOR, merged)?;
    tape.record_one(&sources, loss, || ShardedCrossEntropyRule {
        first,
        shards,
        scores,
        targets: targets.clone(),
        statistics,
        settings,
    })
}

impl Rule for ShardedCrossEntropyRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let scores = self.scores.iter().map(|scores| Saved::new("scores", scores));
        let weights = self.statistics.weights.iter().map(|weights| Saved::new("weights", weights));
        scores.chain([Saved::new("statistics", &self.statistics.rows)]).chain(weights).collect()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let factor = only(outputs)?;
        let request = Request::new(Category::ActivationGradient, OPERATOR);
        let mut gradients = Vec::with_capacity(self.scores.len());
        for (shard, scores) in std::mem::take(&mut self.scores).into_iter().enumerate() {
            let gradient = scores.into_unique(request)?;
            let classes = gradient.shape().columns();
            let run = ClassRun { first: (self.first + shard) * classes, vocabulary: self.shards * classes };
            divided::gradient(&gradient, &self.targets, &self.statistics, run, &self.settings, &factor)?;
            gradients.push(Some(gradient));
        }
        Ok(gradients)
    }
}
