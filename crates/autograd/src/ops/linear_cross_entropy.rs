//! The output head of a language model with mean cross-entropy. Scores are computed for one part of the
//! vocabulary at a time.

use tensor::Tensor;
use tensor::ops::linear_cross_entropy::{self as operator, Operands, Output, Settings, Statistics, divided};

use super::cast::autocast_all;
use super::cross_entropy::ClassShards;
use super::{named, only};
use crate::error::{AutogradError, Result};
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Source, Var};
use crate::sink::{GradientSink, Target, ready, target};
use crate::tape::Tape;
use crate::weight::Weight;

const OPERATOR: &str = "linear_cross_entropy";

/// Backward of [`linear_cross_entropy`], which computes the scores again.
#[derive(Debug)]
pub struct LinearCrossEntropyRule {
    /// The local shards of the head, or the whole head as one.
    heads: Vec<Head>,
    /// Classes of the shards; `None` for a whole head.
    shards: Option<ClassShards>,
    targets: Tensor,
    statistics: Statistics,
    settings: Settings,
    /// Gradient of the loss, kept between the input and weight halves of backward.
    factor: Option<Tensor>,
    /// Whether the input half also computed the weights' gradients.
    has_both: bool,
}

#[derive(Debug)]
struct Head {
    x: Tensor,
    /// Weight, `[classes, in]`.
    weight: Weight,
}

impl Head {
    /// Returns the operands of a call, with the weight in the dtype of `x`.
    fn operands(&self, targets: &Tensor) -> tensor::Result<Operands> {
        let weight = self.weight.values(self.x.dtype())?;
        Ok(Operands { x: self.x.clone(), weight, targets: targets.clone() })
    }
}

/// Computes the mean cross-entropy of the scores `x · weightᵀ` against `targets` over the pass's rows, times
/// `settings.scale`. If the pass has answer pairs, computes their loss and figures instead. `x` is `[..,
/// in]`, of one piece of sequences or of whole ones, and `targets` has one u32 per row. The head is split
/// by classes into `shards` equal shards; `weights` are the local ones, `[classes, in]` each. With several
/// shards, `x` has one block per local shard.
///
/// # Errors
/// Shapes or dtypes do not agree, memory is exhausted, or a collective failed.
pub fn linear_cross_entropy(
    tape: &Tape,
    x: Var,
    (weights, shards): (&[Weight], usize),
    targets: &Tensor,
    settings: Settings,
) -> Result<Var> {
    let classes = weights.first().ok_or(AutogradError::NotRecorded)?.shape().rows();
    if x.blocks() != weights.len() {
        return Err(AutogradError::Blocks { expected: weights.len() });
    }
    let mut x: Vec<Var> = x.into_blocks().collect();
    autocast_all(tape, OPERATOR, &mut x)?;
    tape.begin(OPERATOR)?;
    // The loss of answer pairs needs the losses of all rows first, like a loss in shards.
    let is_whole = shards == 1 && tape.pass().preference.is_none();
    let source = if is_whole { Var::source } else { Var::block_source };
    let sources: Vec<Source> = x.iter().map(source).collect();
    let shards = (!is_whole).then(|| ClassShards::new(tape, [x.len(), shards], classes));
    let head = |(x, weight): (Var, &Weight)| Head { x: x.into_tensor(), weight: weight.clone() };
    let heads: Vec<Head> = x.into_iter().zip(weights).map(head).collect();
    let mean = tape.pass().mean(settings.scale);
    let of_rows = Settings { scale: mean.scale, ..settings };
    let Output { loss, statistics } = match (&shards, &heads[..]) {
        (Some(shards), heads) => {
            shards.loss((tape, OPERATOR), targets, settings.scale, |shard, statistics| {
                let operands = heads[shard].operands(targets)?;
                divided::statistics_of(&operands, shards.run(shard), &settings, statistics)
            })?
        }
        (None, [head]) => {
            let operands = named(OPERATOR, head.operands(targets))?;
            named(OPERATOR, operator::forward(&operands, &of_rows, mean.count))?
        }
        (None, _) => return Err(AutogradError::Blocks { expected: 1 }),
    };
    let targets = targets.clone();
    let settings = of_rows;
    tape.record_one(&sources, loss, || LinearCrossEntropyRule {
        heads,
        shards,
        targets,
        statistics,
        settings,
        factor: None,
        has_both: false,
    })
}

impl LinearCrossEntropyRule {
    /// Computes the gradient of a shard's input if `wanted`, and of its weight into `matrix`. With several
    /// shards, the input's gradient is f32.
    fn gradients(
        &self,
        shard: usize,
        factor: &Tensor,
        wanted: bool,
        matrix: Option<&Target>,
    ) -> Result<Option<Tensor>> {
        let operands = self.heads[shard].operands(&self.targets)?;
        let statistics = &self.statistics;
        let gradients = match &self.shards {
            Some(shards) => {
                let call = (shards.run(shard), &self.settings);
                divided::gradients_of(&operands, statistics, call, factor, wanted, matrix)
            }
            None => operator::backward(&operands, statistics, &self.settings, factor, wanted, matrix),
        };
        Ok(gradients?)
    }
}

impl Rule for LinearCrossEntropyRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let x = self.heads.iter().map(|head| Saved::new("x", &head.x));
        let weights = self.statistics.weights.iter().map(|weights| Saved::new("weights", weights));
        x.chain([Saved::new("statistics", &self.statistics.rows)]).chain(weights).collect()
    }

    fn has_weights(&self) -> bool {
        self.heads.iter().any(|head| head.weight.is_trained())
    }

    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        let factor = only(outputs)?;
        let input = |(shard, wanted): (usize, &bool)| match wanted {
            true => self.gradients(shard, &factor, true, None),
            false => Ok(None),
        };
        let inputs = wanted.iter().enumerate().map(input).collect::<Result<_>>()?;
        self.factor = Some(factor);
        Ok(inputs)
    }

    /// Computes the gradients of inputs and weights together, so that the scores are recomputed only once.
    fn backward(
        &mut self,
        outputs: ValueGradients,
        wanted: &[bool],
        sink: &mut dyn GradientSink,
    ) -> Result<ValueGradients> {
        let factor = only(outputs)?;
        self.has_both = true;
        let input = |(shard, wanted): (usize, &bool)| {
            let matrix = target(sink, &self.heads[shard].weight)?;
            match *wanted || matrix.is_some() {
                true => self.gradients(shard, &factor, *wanted, matrix.as_ref()),
                false => Ok(None),
            }
        };
        wanted.iter().enumerate().map(input).collect()
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        if let (false, Some(factor)) = (self.has_both, &self.factor) {
            for (shard, head) in self.heads.iter().enumerate() {
                if let Some(matrix) = target(sink, &head.weight)? {
                    self.gradients(shard, factor, false, Some(&matrix))?;
                }
            }
        }
        let weights: Vec<Weight> = self.heads.iter().map(|head| head.weight.clone()).collect();
        drop(self);
        weights.iter().try_for_each(|weight| ready(sink, weight))
    }
}
