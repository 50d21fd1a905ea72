//! The partition of a model's layers over stages.

use std::ops::Range;

use nn::Stage;

use crate::pipeline::load::Load;

/// The reason why a partition is impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartitionError {
    /// The partition has 0 stages.
    #[error("a model cannot be divided into 0 stages")]
    NoStages,
    /// There are more stages than layers.
    #[error("{layers} layers cannot be divided into {stages} stages: a stage would be empty")]
    TooManyStages {
        /// Requested number of stages.
        stages: usize,
        /// Number of layers of the model.
        layers: usize,
    },
    /// Layer counts are listed for another number of stages.
    #[error("the layer counts are for {counts} stages; the pipeline has {stages}")]
    Counts {
        /// Number of counts.
        counts: usize,
        /// Number of stages of the pipeline.
        stages: usize,
    },
    /// A stage has no layer.
    #[error("stage {stage} (from 0) has no layer")]
    EmptyStage {
        /// The stage, from 0.
        stage: usize,
    },
    /// The layer counts do not add up to the model's number of layers.
    #[error("the stages' layers add up to {sum}; the model has {layers}")]
    Sum {
        /// Sum of the counts.
        sum: usize,
        /// Number of layers of the model.
        layers: usize,
    },
}

/// Time of each layer for forward and backward of one micro-batch, in any common unit.
///
/// The first layer includes everything before it (embeddings), the last layer everything after it (head).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerCosts {
    /// Time of each layer.
    pub layers: Vec<u64>,
    /// Extra time of each layer if backward recomputes it; missing entries count as 0.
    pub again: Vec<u64>,
    /// Number of recomputed layers per stage, counted from its first.
    pub recomputed: usize,
}

impl LayerCosts {
    /// Returns the time of a stage with these layers.
    pub fn stage_time(&self, layers: Range<usize>) -> u64 {
        let again = self.again.get(layers.clone()).unwrap_or_default().iter().take(self.recomputed);
        let own = self.layers.get(layers).unwrap_or_default();
        own.iter().chain(again).copied().fold(0, u64::saturating_add)
    }

    /// Returns a function that computes [`LayerCosts::stage_time`] in constant time per call.
    fn by_range(&self) -> impl Fn(Range<usize>) -> u64 {
        let own = Sums::from_numbers(self.layers.iter());
        let again = Sums::from_numbers(self.again.iter());
        let recomputed = self.recomputed;
        move |layers| {
            let first = layers.start..layers.end.min(layers.start.saturating_add(recomputed));
            clamped(own.of_range(layers) + again.of_range(first))
        }
    }
}

/// Bytes that one or several layers hold on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldBytes {
    /// Bytes of parameters, gradients and optimizer state.
    pub parameters: u64,
    /// Bytes of one micro-batch's activations, held from forward to the end of backward or of its input half.
    pub activations: u64,
    /// Bytes of one micro-batch kept for weight gradients, from the end of backward's input half.
    pub weights: u64,
}

/// Bytes that a model holds, layer by layer.
///
/// The first layer includes everything before it (embeddings), the last layer everything after it (head).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerBytes {
    /// Bytes of each layer.
    pub layers: Vec<HeldBytes>,
    /// Bytes of the tensor sent from a stage to the next.
    pub transfer: u64,
}

/// A partition of a model's layers into contiguous, non-empty stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    counts: Vec<usize>,
}

impl Partition {
    /// Checks that `layers` layers can be partitioned into `stages` stages.
    ///
    /// # Errors
    /// 0 stages, or more stages than layers.
    pub fn possible(layers: usize, stages: usize) -> Result<(), PartitionError> {
        check(layers, stages)
    }

    /// Creates the partition with `counts` layers in each stage.
    ///
    /// # Errors
    /// The counts are for another number of stages, a stage is empty, or the sum is not the model's number of
    /// layers.
    pub fn explicit(layers: usize, stages: usize, counts: &[usize]) -> Result<Self, PartitionError> {
        check(layers, stages)?;
        if counts.len() != stages {
            return Err(PartitionError::Counts { counts: counts.len(), stages });
        }
        if let Some(stage) = counts.iter().position(|count| *count == 0) {
            return Err(PartitionError::EmptyStage { stage });
        }
        let sum = counts.iter().fold(0_usize, |sum, count| sum.saturating_add(*count));
        if sum != layers {
            return Err(PartitionError::Sum { sum, layers });
        }
        Ok(Partition { counts: counts.to_vec() })
    }

    /// Finds the partition that minimises the time of the slowest stage.
    ///
    /// # Errors
    /// 0 stages, or more stages than layers.
    pub fn fastest(costs: &LayerCosts, stages: usize) -> Result<Self, PartitionError> {
        let cost = costs.by_range();
        partition(costs.layers.len(), stages, |_, range| cost(range))
    }

    /// Finds the partition that minimises the largest peak memory of a stage, under the loads of a schedule's
    /// stages ([`loads`](crate::pipeline::loads)). Several stages of one rank count separately.
    ///
    /// # Errors
    /// 0 stages, or more stages than layers.
    pub fn smallest(bytes: &LayerBytes, loads: &[Load]) -> Result<Self, PartitionError> {
        let levels: Vec<_> = loads.iter().map(Load::levels).collect();
        let sums = |read: fn(&HeldBytes) -> &u64| Sums::from_numbers(bytes.layers.iter().map(read));
        let parameters = sums(|layer| &layer.parameters);
        let activations = sums(|layer| &layer.activations);
        let weights = sums(|layer| &layer.weights);
        partition(bytes.layers.len(), loads.len(), |stage, range| {
            let held = HeldBytes {
                parameters: clamped(parameters.of_range(range.clone())),
                activations: clamped(activations.of_range(range.clone())),
                weights: clamped(weights.of_range(range)),
            };
            let in_flight = levels[stage].iter().map(|level| {
                times(held.activations, level.activations).saturating_add(times(held.weights, level.weights))
            });
            let peak = loads[stage].peak;
            let received = times(bytes.transfer, peak.received_forward + peak.received_backward);
            held.parameters.saturating_add(in_flight.max().unwrap_or(0)).saturating_add(received)
        })
    }

    /// Number of layers of each stage.
    pub fn counts(&self) -> &[usize] {
        &self.counts
    }

    /// The stages, as ranges of the model's layer numbers.
    pub fn stages(&self) -> Vec<Stage> {
        let model_layers = self.counts.iter().sum();
        let mut start = 0;
        let stage = |count: &usize| {
            let layers = start..start + count;
            start = layers.end;
            Stage { layers, model_layers }
        };
        self.counts.iter().map(stage).collect()
    }
}

/// Prefix sums of a list, for sums over ranges.
struct Sums(Vec<u128>);

impl Sums {
    fn from_numbers<'a>(numbers: impl Iterator<Item = &'a u64>) -> Self {
        let running = numbers.scan(0, |sum: &mut u128, number| {
            *sum += u128::from(*number);
            Some(*sum)
        });
        Sums(std::iter::once(0).chain(running).collect())
    }

    /// Returns the sum over `range`; positions beyond the list count as 0.
    fn of_range(&self, range: Range<usize>) -> u128 {
        let before = |position: usize| self.0[position.min(self.0.len() - 1)];
        before(range.end) - before(range.start)
    }
}

fn clamped(sum: u128) -> u64 {
    u64::try_from(sum).unwrap_or(u64::MAX)
}

fn times(bytes: u64, count: usize) -> u64 {
    bytes.saturating_mul(count as u64)
}

fn check(layers: usize, stages: usize) -> Result<(), PartitionError> {
    if stages == 0 {
        return Err(PartitionError::NoStages);
    }
    if stages > layers {
        return Err(PartitionError::TooManyStages { stages, layers });
    }
    Ok(())
}

/// Finds the partition with the smallest maximum cost. Ties go to the smallest sum of squares, then to the
/// fewest layers in the earliest stages. Exact, by dynamic programming from the last stage to the first;
/// `cost` must not fall as a stage is extended at its end.
fn partition(
    layers: usize,
    stages: usize,
    cost: impl Fn(usize, Range<usize>) -> u64,
) -> Result<Partition, PartitionError> {
    check(layers, stages)?;
    let largest = tails(layers, stages, &cost, |cost, tail: u128| Some(u128::from(cost).max(tail)));
    let bound = largest[0][0].unwrap_or(u128::MAX);
    let square = |cost: u64, tail: u128| {
        let cost = u128::from(cost);
        (cost <= bound).then(|| cost.saturating_mul(cost).saturating_add(tail))
    };
    let squares = tails(layers, stages, &cost, square);
    let mut counts = Vec::with_capacity(stages);
    let mut start = 0;
    for stage in 0..stages {
        let after =
            |end: &usize| squares[stage + 1][*end].and_then(|tail| square(cost(stage, start..*end), tail));
        let end =
            (start + 1..=layers).find(|end| after(end).is_some() && after(end) == squares[stage][start]);
        let end = end.unwrap_or(layers);
        counts.push(end - start);
        start = end;
    }
    Ok(Partition { counts })
}

/// Returns, by first stage and first layer, the best value of partitioning the remaining layers over the
/// remaining stages. `join` of a stage's cost and 0 is a lower bound for all partitions in which that stage
/// is at least as long; the search stops once this bound is no better than the best value.
fn tails(
    layers: usize,
    stages: usize,
    cost: impl Fn(usize, Range<usize>) -> u64,
    join: impl Fn(u64, u128) -> Option<u128>,
) -> Vec<Vec<Option<u128>>> {
    let mut tails = vec![vec![None; layers + 1]; stages + 1];
    tails[stages][layers] = Some(0);
    for stage in (0..stages).rev() {
        // Every stage before and after this one has a layer.
        let after = stages - stage - 1;
        for start in stage..layers - after {
            let mut best: Option<u128> = None;
            let ends = tails[stage + 1].iter().enumerate().take(layers - after + 1).skip(start + 1);
            for (end, tail) in ends {
                let own = cost(stage, start..end);
                let Some(least) = join(own, 0) else { break };
                if best.is_some_and(|best| least >= best) {
                    break;
                }
                let joined = tail.and_then(|tail| join(own, tail));
                best = [best, joined].into_iter().flatten().min();
            }
            tails[stage][start] = best;
        }
    }
    tails
}
