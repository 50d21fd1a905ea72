//! Sums in shards (ZeRO stages 2 and 3): ranks run lanes in turn, in one group or in several.

use collective::threads;
use device::DType;
use parallel::data::{Assignment, BucketEnd, Reduction};

use super::{How, OwnedPart, assemble, expected, references, run};

/// Numbers of lanes, micro-batches, ranks, and ranks per group.
type Grid = (usize, usize, usize, usize);

/// Grids of one group: powers of two, other numbers of ranks, and several micro-batches per lane.
const ONE_GROUP: [Grid; 12] = [
    (2, 2, 2, 2),
    (8, 8, 2, 2),
    (8, 8, 8, 8),
    (3, 3, 2, 2),
    (3, 3, 3, 3),
    (8, 8, 3, 3),
    (12, 12, 5, 5),
    (8, 8, 7, 7),
    (35, 35, 6, 6),
    (4, 12, 2, 2),
    (5, 10, 3, 3),
    (6, 12, 4, 4),
];

/// Grids of several groups; the last ones have groups of a single rank.
const GROUPS: [Grid; 9] = [
    (4, 4, 4, 2),
    (8, 16, 8, 4),
    (8, 8, 6, 3),
    (8, 8, 6, 2),
    (9, 9, 6, 2),
    (7, 14, 6, 3),
    (13, 13, 9, 3),
    (8, 8, 4, 1),
    (5, 10, 3, 1),
];

/// Rules for closing buckets, with the ZeRO stage: one bucket for each gradient, for some, for all, and for
/// each unit.
const ENDS: [(BucketEnd, u32); 4] = [
    (BucketEnd::Bytes(1), 2),
    (BucketEnd::Bytes(40_000), 2),
    (BucketEnd::Bytes(1 << 20), 2),
    (BucketEnd::Unit, 3),
];

/// Returns the loss and gradients of every rank.
fn ranks_of(
    (lanes, micro_batches, ranks, group): Grid,
    end: BucketEnd,
    how: How,
) -> Vec<(f32, Vec<OwnedPart>)> {
    let turns = Assignment::in_groups(lanes, ranks, group).padded().with_lanes_of(micro_batches / lanes);
    threads::run(ranks, threads::Options::default(), move |communicator| {
        run(communicator, turns, end, how, 0.0)
    })
    .unwrap()
}

fn assert_exact(grid: Grid, reduction: Reduction) {
    let (lanes, micro_batches, _, group) = grid;
    let loss = expected(99, 1, micro_batches, lanes, DType::F32)[0];
    for dtype in [DType::F32, DType::Bf16] {
        let reference = references(micro_batches, lanes, dtype);
        for (end, zero_stage) in ENDS {
            let ranks = ranks_of(grid, end, (reduction, zero_stage, dtype));
            let name = format!("{grid:?}, {end:?}, {reduction:?}, stage {zero_stage}, {dtype:?}");
            assert!(ranks.iter().all(|(actual, _)| *actual == loss), "{name}");
            // Each group has every element once.
            for group in ranks.chunks(group) {
                assert_eq!(assemble(group.iter()), reference, "{name}");
            }
        }
    }
}

#[test]
fn lanes_in_rounds_give_the_defined_sum() {
    ONE_GROUP.into_iter().for_each(|grid| assert_exact(grid, Reduction::Tree));
}

#[test]
fn groups_give_the_defined_sum() {
    GROUPS.into_iter().for_each(|grid| assert_exact(grid, Reduction::Tree));
}

/// Between threads, the transport adds powers of two in the order of the tree.
#[test]
fn a_library_gives_the_defined_sum_of_powers_of_two() {
    for grid in [(2, 2, 2, 2), (8, 8, 2, 2), (8, 16, 8, 8), (4, 12, 2, 2), (8, 8, 4, 2), (8, 16, 8, 4)] {
        assert_exact(grid, Reduction::Library);
    }
}

/// A rank without a lane in the last round adds nothing.
#[test]
fn a_library_adds_each_lane_once() {
    for grid in [(3, 3, 2, 2), (8, 8, 3, 3), (5, 10, 3, 3), (8, 8, 7, 7), (8, 8, 6, 3), (7, 14, 6, 2)] {
        let (lanes, micro_batches, _, group) = grid;
        let loss = expected(99, 1, micro_batches, lanes, DType::F32)[0];
        let reference = references(micro_batches, lanes, DType::F32);
        for zero_stage in [2, 3] {
            let ranks = ranks_of(grid, BucketEnd::Unit, (Reduction::Library, zero_stage, DType::F32));
            assert!(ranks.iter().all(|(actual, _)| *actual == loss), "{grid:?}");
            for (actual, expected) in
                ranks.chunks(group).flat_map(|group| assemble(group.iter()).into_iter().zip(&reference))
            {
                // Values are up to 10^6 times a normal number.
                let is_near = |(index, (a, b)): (usize, (&f32, &f32))| {
                    (a - b).abs() < 1e-5 * 10_f32.powi((index % 7) as i32)
                };
                assert!(actual.iter().zip(expected).enumerate().all(is_near), "{grid:?}, stage {zero_stage}");
            }
        }
    }
}
