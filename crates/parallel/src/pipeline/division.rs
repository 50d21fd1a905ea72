//! How a model's layers are divided over stages.

use std::ops::Range;

use nn::Stage;

use crate::pipeline::load::Load;

/// A division that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DivisionError {
    /// No stage at all.
    #[error("a model cannot be divided into 0 stages")]
    NoStages,
    /// Not a layer for every stage.
    #[error("{layers} layers cannot be divided into {stages} stages: a stage would be empty")]
    TooManyStages {
        /// Stages asked for.
        stages: usize,
        /// Layers there are.
        layers: usize,
    },
    /// Counts for another number of stages.
    #[error("layers are counted for {counts} stages, there are {stages}")]
    Counts {
        /// Counts given.
        counts: usize,
        /// Stages there are.
        stages: usize,
    },
    /// A stage without a layer.
    #[error("stage {stage} (from 0) has no layer")]
    EmptyStage {
        /// Which one.
        stage: usize,
    },
    /// Counts that do not add up to the model.
    #[error("the stages' layers add up to {sum}, the model has {layers}")]
    Sum {
        /// What they add up to.
        sum: usize,
        /// Layers there are.
        layers: usize,
    },
}

/// How long each layer takes, in any one unit: forward and backward of a micro-batch. The first one has what comes before
/// the layers, the last one what comes after them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerCosts {
    /// The layers, in order.
    pub layers: Vec<u64>,
    /// What each takes on top where backward computes it again; one without takes nothing.
    pub again: Vec<u64>,
    /// How many layers of every stage that is, the first ones.
    pub recomputed: usize,
}

impl LayerCosts {
    /// The cost of a stage with these layers.
    pub fn of(&self, layers: Range<usize>) -> u64 {
        let again = self.again.get(layers.clone()).unwrap_or_default().iter().take(self.recomputed);
        let own = self.layers.get(layers).unwrap_or_default();
        own.iter().chain(again).copied().fold(0, u64::saturating_add)
    }
}

/// What a part of a model holds on the device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartBytes {
    /// Once: parameters, their gradients, their optimizer state.
    pub parameters: u64,
    /// Per micro-batch, from forward to the end of backward, or of its input half.
    pub activations: u64,
    /// Per micro-batch, from the end of backward's input half to the end of its weights' half.
    pub weights: u64,
}

/// What a model holds, layer by layer. The first one has what comes before the layers, the last one what comes after them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerBytes {
    /// The layers, in order.
    pub layers: Vec<PartBytes>,
    /// The tensor that crosses a cut.
    pub crossing: u64,
}

/// Contiguous layers for every stage; none is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    counts: Vec<usize>,
}

impl Division {
    /// Whether so many layers can be divided into so many stages. Errors: no stage, or more of them than layers.
    pub fn possible(layers: usize, stages: usize) -> Result<(), DivisionError> {
        check(layers, stages)
    }

    /// The division with so many layers in each stage. Errors: another number of counts than stages, an empty stage,
    /// or a sum that is not the model's.
    pub fn explicit(layers: usize, stages: usize, counts: &[usize]) -> Result<Self, DivisionError> {
        check(layers, stages)?;
        if counts.len() != stages {
            return Err(DivisionError::Counts { counts: counts.len(), stages });
        }
        if let Some(stage) = counts.iter().position(|count| *count == 0) {
            return Err(DivisionError::EmptyStage { stage });
        }
        let sum = counts.iter().fold(0_usize, |sum, count| sum.saturating_add(*count));
        if sum != layers {
            return Err(DivisionError::Sum { sum, layers });
        }
        Ok(Division { counts: counts.to_vec() })
    }

    /// The division whose slowest stage is as fast as can be.
    pub fn fastest(costs: &LayerCosts, stages: usize) -> Result<Self, DivisionError> {
        divide(costs.layers.len(), stages, |_, range| costs.of(range))
    }

    /// The division whose stage with the largest peak has as small a one as can be; `loads` are the schedule's stages
    /// (see [`loads`](crate::pipeline::loads)). Where a rank holds several stages, each counts for itself.
    pub fn smallest(bytes: &LayerBytes, loads: &[Load]) -> Result<Self, DivisionError> {
        let levels: Vec<_> = loads.iter().map(Load::levels).collect();
        divide(bytes.layers.len(), loads.len(), |stage, range| {
            let part = bytes.layers[range].iter().copied().fold(PartBytes::default(), add);
            let in_flight = levels[stage].iter().map(|held| {
                times(part.activations, held.activations).saturating_add(times(part.weights, held.weights))
            });
            let peak = loads[stage].peak;
            let received = times(bytes.crossing, peak.received_forward + peak.received_backward);
            part.parameters.saturating_add(in_flight.max().unwrap_or(0)).saturating_add(received)
        })
    }

    /// Layers of each stage.
    pub fn counts(&self) -> &[usize] {
        &self.counts
    }

    /// The stages, in the model's layer numbers.
    pub fn stages(&self) -> Vec<Stage> {
        let of = self.counts.iter().sum();
        let mut start = 0;
        let stage = |count: &usize| {
            let layers = start..start + count;
            start = layers.end;
            Stage { layers, of }
        };
        self.counts.iter().map(stage).collect()
    }
}

fn add(a: PartBytes, b: PartBytes) -> PartBytes {
    PartBytes {
        parameters: a.parameters.saturating_add(b.parameters),
        activations: a.activations.saturating_add(b.activations),
        weights: a.weights.saturating_add(b.weights),
    }
}

fn times(bytes: u64, count: usize) -> u64 {
    bytes.saturating_mul(count as u64)
}

fn check(layers: usize, stages: usize) -> Result<(), DivisionError> {
    if stages == 0 {
        return Err(DivisionError::NoStages);
    }
    if stages > layers {
        return Err(DivisionError::TooManyStages { stages, layers });
    }
    Ok(())
}

/// The division with the smallest largest cost; of those the one with the smallest sum of squares, and then the one
/// with the fewest layers in the earliest stages. Exact, by dynamic programming from the last stage to the first.
fn divide(
    layers: usize,
    stages: usize,
    cost: impl Fn(usize, Range<usize>) -> u64,
) -> Result<Division, DivisionError> {
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
    Ok(Division { counts })
}

/// By stage and layer: the best that the stages from there on can make of the layers from there on, if they can.
fn tails(
    layers: usize,
    stages: usize,
    cost: impl Fn(usize, Range<usize>) -> u64,
    join: impl Fn(u64, u128) -> Option<u128>,
) -> Vec<Vec<Option<u128>>> {
    let mut tails = vec![vec![None; layers + 1]; stages + 1];
    tails[stages][layers] = Some(0);
    for stage in (0..stages).rev() {
        for start in 0..layers {
            let ends = start + 1..=layers;
            let joined = ends.filter_map(|end| join(cost(stage, start..end), tails[stage + 1][end]?));
            tails[stage][start] = joined.min();
        }
    }
    tails
}
