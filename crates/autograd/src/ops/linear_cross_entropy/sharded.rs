//! The loss of an output head whose classes are in shards; scores are computed in pieces of each shard.

use device::{Category, DType, Request};
use tensor::Tensor;
use tensor::ops::linear_cross_entropy::divided::{self, ClassRun};
use tensor::ops::linear_cross_entropy::{Operands, Output, Settings, Statistics};

use super::super::cast::autocast_all;
use super::super::cross_entropy::merged_loss;
use super::super::{named, only};
use super::whole::OPERATOR;
use crate::error::{AutogradError, Result};
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Source, TensorRanks, Var};
use crate::sink::{GradientSink, Target, ready, target};
use crate::tape::Tape;
use crate::weight::Weight;

/// Backward of [`linear_cross_entropy`](super::linear_cross_entropy()) of shards, which computes the scores a
/// second time.
#[derive(Debug)]
pub struct ShardedLinearCrossEntropyRule {
    shards: Vec<ShardHead>,
    targets: Tensor,
    statistics: Statistics,
    settings: Settings,
    /// Gradient of the loss, from the input half to the weight half.
    factor: Option<Tensor>,
    /// Whether the input half also computed the gradients of the weights.
    whole: bool,
}

/// A shard that is here.
#[derive(Debug)]
struct ShardHead {
    x: Tensor,
    /// `[classes, in]`.
    weight: Weight,
    run: ClassRun,
}

impl ShardHead {
    /// The operands of a call, with the weight in the type of `x`.
    fn operands(&self, targets: &Tensor) -> tensor::Result<Operands> {
        let weight = self.weight.values(self.x.dtype())?;
        Ok(Operands { x: self.x.clone(), weight, targets: targets.clone() })
    }
}

/// `settings.scale` times the mean cross-entropy of the scores `x · weightᵀ` of all shards against `targets`,
/// one u32 per row among all classes, or the loss of the pass's pairs of answers with its figures. `x` has
/// for each shard that is here, of `shards` in all, the same rows `[.., in]`, and `weights` its `[classes,
/// in]`.
///
/// # Errors
/// No shard; as [`divided::statistics_of`] and [`divided::merge`]; a failed collective.
pub(super) fn linear_cross_entropy(
    tape: &Tape,
    mut x: Vec<Var>,
    weights: &[Weight],
    shards: usize,
    targets: &Tensor,
    settings: Settings,
) -> Result<Var> {
    autocast_all(tape, OPERATOR, &mut x)?;
    tape.begin(OPERATOR)?;
    let ranks = TensorRanks::new(tape, false);
    let sources: Vec<Source> = x.iter().map(Var::block_source).collect();
    let (first, rows, here) = (ranks.first_shard(x.len()), targets.elements(), x.len());
    let classes = weights.first().ok_or(AutogradError::NotRecorded)?.shape().rows();
    let head = |(shard, (x, weight)): (usize, (Var, &Weight))| {
        let run = ClassRun { first: (first + shard) * classes, vocabulary: shards * classes };
        ShardHead { x: x.into_tensor(), weight: weight.clone(), run }
    };
    let heads: Vec<ShardHead> = x.into_iter().zip(weights).enumerate().map(head).collect();
    let request = Request::new(Category::Activation, OPERATOR);
    let own = Tensor::empty(targets.device(), [here, 3, rows], DType::F32, request)?;
    let of_shard = |(shard, head): (usize, &ShardHead)| -> tensor::Result<()> {
        let statistics = own.view(shard * 3 * rows, [3, rows])?;
        divided::statistics_of(&head.operands(targets)?, head.run, &settings, &statistics)
    };
    named(OPERATOR, heads.iter().enumerate().try_for_each(of_shard))?;
    let all = ranks.gather(own, request)?;
    let merged = merged_loss(tape, &all, targets, classes, settings.scale);
    let settings = Settings { scale: tape.pass().mean(settings.scale).scale, ..settings };
    let Output { loss, statistics } = named(OPERATOR, merged)?;
    let targets = targets.clone();
    tape.record_one(&sources, loss, || ShardedLinearCrossEntropyRule {
        shards: heads,
        targets,
        statistics,
        settings,
        factor: None,
        whole: false,
    })
}

impl ShardedLinearCrossEntropyRule {
    /// The gradient of a shard's input if `wanted`, in f32, and that of its weight in `matrix`.
    fn gradients(
        &self,
        shard: &ShardHead,
        factor: &Tensor,
        wanted: bool,
        matrix: Option<&Target>,
    ) -> Result<Option<Tensor>> {
        let (operands, call) = (shard.operands(&self.targets)?, (shard.run, &self.settings));
        Ok(divided::gradients_of(&operands, &self.statistics, call, factor, wanted, matrix)?)
    }
}

impl Rule for ShardedLinearCrossEntropyRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let x = self.shards.iter().map(|shard| Saved::new("x", &shard.x));
        let weights = self.statistics.weights.iter().map(|weights| Saved::new("weights", weights));
        x.chain([Saved::new("statistics", &self.statistics.rows)]).chain(weights).collect()
    }

    fn has_weights(&self) -> bool {
        self.shards.iter().any(|shard| shard.weight.is_trained())
    }

    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        let factor = only(outputs)?;
        let input = |(shard, wanted): (&ShardHead, &bool)| match wanted {
            true => self.gradients(shard, &factor, true, None),
            false => Ok(None),
        };
        let inputs = self.shards.iter().zip(wanted).map(input).collect::<Result<_>>()?;
        self.factor = Some(factor);
        Ok(inputs)
    }

    /// Also computes the gradients of the weights, because each piece of the scores serves both.
    fn backward(
        &mut self,
        outputs: ValueGradients,
        wanted: &[bool],
        sink: &mut dyn GradientSink,
    ) -> Result<ValueGradients> {
        let factor = only(outputs)?;
        self.whole = true;
        let mut inputs = Vec::with_capacity(self.shards.len());
        for (shard, wanted) in self.shards.iter().zip(wanted) {
            let matrix = target(sink, &shard.weight)?;
            inputs.push(match *wanted || matrix.is_some() {
                true => self.gradients(shard, &factor, *wanted, matrix.as_ref())?,
                false => None,
            });
        }
        Ok(inputs)
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        if let (false, Some(factor)) = (self.whole, &self.factor) {
            for shard in &self.shards {
                if let Some(matrix) = target(sink, &shard.weight)? {
                    self.gradients(shard, factor, false, Some(&matrix))?;
                }
            }
        }
        let weights: Vec<Weight> = self.shards.iter().map(|shard| shard.weight.clone()).collect();
        drop(self);
        weights.iter().try_for_each(|weight| ready(sink, weight))
    }
}
