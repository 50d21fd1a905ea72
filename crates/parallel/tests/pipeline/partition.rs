//! Partitions of layers over stages.

use std::ops::Range;

use parallel::pipeline::{
    HeldBytes, LayerBytes, LayerCosts, Load, Partition, PartitionError, ScheduleKind, loads,
};
use proptest::prelude::*;

use super::shapes::schedule;

#[test]
fn explicit_counts() {
    let partition = Partition::explicit(7, 3, &[1, 4, 2]).unwrap();
    let stages = partition.stages();
    assert_eq!(stages.iter().map(|stage| stage.layers.clone()).collect::<Vec<_>>(), [0..1, 1..5, 5..7]);
    assert!(stages.iter().all(|stage| stage.model_layers == 7));
    assert!(stages[0].is_first() && !stages[0].is_last() && stages[2].is_last());
    let table: [(usize, &[usize], &str); 6] = [
        (3, &[1, 4, 1], "the stages' layers add up to 6; the model has 7"),
        (3, &[3, 0, 4], "stage 1 (from 0) has no layer"),
        (3, &[3, 4], "the layer counts are for 2 stages; the pipeline has 3"),
        (0, &[], "a model cannot be divided into 0 stages"),
        (8, &[1; 8], "7 layers cannot be divided into 8 stages: a stage would be empty"),
        (2, &[usize::MAX, 1], "the stages' layers add up to 18446744073709551615; the model has 7"),
    ];
    for (stages, counts, message) in table {
        assert_eq!(Partition::explicit(7, stages, counts).unwrap_err().to_string(), message);
    }
}

#[test]
fn an_expensive_head_gets_fewer_layers() {
    let even = LayerCosts { layers: vec![10; 8], ..LayerCosts::default() };
    assert_eq!(Partition::fastest(&even, 4).unwrap().counts(), [2, 2, 2, 2]);
    let with_head = [vec![10; 7], vec![25]].concat();
    let head = LayerCosts { layers: with_head.clone(), ..LayerCosts::default() };
    assert_eq!(Partition::fastest(&head, 4).unwrap().counts(), [2, 2, 3, 1]);
    assert_eq!(
        Partition::fastest(&head, 9).unwrap_err(),
        PartitionError::TooManyStages { stages: 9, layers: 8 }
    );
    // If all layers are recomputed, the head is a smaller part of its stage; if some are, the layers after
    // them cost less.
    for (recomputed, counts) in [(usize::MAX, [2, 2, 2, 2]), (2, [1, 3, 3, 1]), (1, [2, 2, 3, 1])] {
        let again = LayerCosts { layers: with_head.clone(), again: vec![10; 8], recomputed };
        assert_eq!(Partition::fastest(&again, 4).unwrap().counts(), counts, "{recomputed}");
    }
    let uneven = LayerCosts { layers: vec![7; 5], ..LayerCosts::default() };
    assert_eq!(Partition::fastest(&uneven, 3).unwrap().counts(), [1, 2, 2]);
}

/// Under 1F1B the first stage holds the most micro-batches, so it gets the fewest layers; under GPipe all
/// stages hold the same number.
#[test]
fn the_smallest_peak_follows_the_schedule() {
    let layer = HeldBytes { parameters: 10, activations: 100, weights: 0 };
    let bytes = LayerBytes { layers: vec![layer; 12], transfer: 1 };
    let smallest = |kind| {
        let stages = loads(&schedule(kind, 4, 1, 8)).stages;
        Partition::smallest(&bytes, &stages).unwrap().counts().to_vec()
    };
    assert_eq!(smallest(ScheduleKind::GPipe), [3, 3, 3, 3]);
    // 4, 3, 2 and 1 micro-batches in flight: 8, 6, 6 and 6 layers' activations.
    assert_eq!(smallest(ScheduleKind::OneForwardOneBackward), [1, 2, 3, 6]);
}

/// Returns all partitions of `layers` into `stages` stages.
fn all(layers: Range<usize>, stages: usize) -> Vec<Vec<usize>> {
    if stages == 1 {
        return vec![vec![layers.len()]];
    }
    let first = 1..=(layers.len() + 1).saturating_sub(stages);
    let rest = |count: usize| all(layers.start + count..layers.end, stages - 1).into_iter();
    first.flat_map(|count| rest(count).map(move |rest| [vec![count], rest].concat())).collect()
}

fn stage_cost(costs: &LayerCosts, counts: &[usize], stage: usize) -> u64 {
    let start: usize = counts[..stage].iter().sum();
    let range = start..start + counts[stage];
    let again: u64 = costs.again[range.clone()].iter().take(costs.recomputed).sum();
    costs.layers[range].iter().sum::<u64>() + again
}

fn peak(bytes: &LayerBytes, loads: &[Load], counts: &[usize], stage: usize) -> u64 {
    let sum = |read: fn(&HeldBytes) -> u64| {
        let layers: Vec<_> = bytes.layers.iter().map(read).collect();
        let again = vec![0; layers.len()];
        stage_cost(&LayerCosts { layers, again, recomputed: 0 }, counts, stage)
    };
    let activations = sum(|part| part.activations);
    let weights = sum(|part| part.weights);
    let held = loads[stage].during.iter();
    let held =
        held.map(|held| activations * held.activations as u64 + weights * held.weights as u64).max().unwrap();
    let received = loads[stage].peak.received_forward + loads[stage].peak.received_backward;
    sum(|part| part.parameters) + held + bytes.transfer * received as u64
}

fn part() -> impl Strategy<Value = HeldBytes> {
    (0..100_u64, 0..100_u64, 0..100_u64).prop_map(|(parameters, activations, weights)| HeldBytes {
        parameters,
        activations,
        weights,
    })
}

proptest! {
    /// No other partition has a faster slowest stage.
    #[test]
    fn fastest_is_exact(
        layers in proptest::collection::vec((0..100_u64, 0..50_u64), 1..10),
        recomputed in 0..4_usize,
        first in 0..300_u64,
        last in 0..300_u64,
        stages in 1..6_usize,
    ) {
        let (mut layers, again): (Vec<_>, Vec<_>) = layers.into_iter().unzip();
        let n = layers.len();
        layers[0] += first;
        layers[n - 1] += last;
        let costs = LayerCosts { layers, again, recomputed };
        prop_assume!(stages <= n);
        let slowest = |counts: &[usize]| (0..stages).map(|stage| stage_cost(&costs, counts, stage)).max();
        let partition = Partition::fastest(&costs, stages).unwrap();
        prop_assert_eq!(Partition::explicit(n, stages, partition.counts()), Ok(partition.clone()));
        let best = all(0..n, stages).iter().map(|counts| slowest(counts)).min().unwrap();
        prop_assert_eq!(slowest(partition.counts()), best);
    }

    /// No other partition has a smaller largest peak.
    #[test]
    fn smallest_is_exact(
        mut layers in proptest::collection::vec(part(), 1..9),
        first in part(),
        last in part(),
        transfer in 0..50_u64,
        stages in 1..5_usize,
        kind in prop::sample::select(vec![
            ScheduleKind::GPipe,
            ScheduleKind::OneForwardOneBackward,
            ScheduleKind::ZeroBubble,
        ]),
        micro_batches in 1..8_usize,
    ) {
        let n = layers.len();
        for (layer, more) in [(0, first), (n - 1, last)] {
            layers[layer].parameters += more.parameters;
            layers[layer].activations += more.activations;
            layers[layer].weights += more.weights;
        }
        let bytes = LayerBytes { layers, transfer };
        prop_assume!(stages <= n);
        let loads = loads(&schedule(kind, stages, 1, micro_batches)).stages;
        let largest = |counts: &[usize]| (0..stages).map(|stage| peak(&bytes, &loads, counts, stage)).max();
        let partition = Partition::smallest(&bytes, &loads).unwrap();
        let best = all(0..n, stages).iter().map(|counts| largest(counts)).min().unwrap();
        prop_assert_eq!(largest(partition.counts()), best);
    }
}
