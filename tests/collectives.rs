//! Tests of collectives as operators of a model: where they compose to the identity, training has the bits of
//! the model without them; everywhere, bytes, calls and traffic are as planned.

use crate::common::runs::{GPT, config, on_cpu};
use crate::common::wrapped::with_forward;
use autograd::{Tape, Var, ops};
use collective::Axis;
use run::{RunOptions, TrainReport};

/// Applies collectives to a stage's output.
type Collectives = fn(&Tape, Var) -> autograd::Result<Var>;

/// Trains; fails on a difference from the planned bytes, calls or traffic.
fn train(overrides: &[&str], collectives: Option<Collectives>) -> TrainReport {
    let hook = |collectives: Collectives| {
        with_forward(move |model, tape, input| {
            let output = model.forward(tape, input)?;
            // Data-parallel ranks may have different numbers of validation micro-batches.
            match tape.mode().is_training() {
                true => Ok(collectives(tape, output)?),
                false => Ok(output),
            }
        })
    };
    let directory = tempfile::tempdir().unwrap();
    let options = RunOptions { model_hook: collectives.map(hook), ..on_cpu(directory.path()) };
    let report = run::train(config(GPT, overrides), options).unwrap();
    assert!(report.divergences.is_empty() && report.outlived.is_empty(), "{overrides:?}: {report}");
    assert!(report.unplanned.as_ref().is_some_and(Vec::is_empty), "{overrides:?}: {report}");
    report
}

const GRIDS: [&[&str]; 6] = [
    &[],
    &["parallel.data=2"],
    &["parallel.data=4"],
    &["parallel.data=2", "parallel.pipeline=2", "memory.recompute=block"],
    &["parallel.data=2", "parallel.zero_stage=1"],
    &["parallel.data=4", "parallel.zero_stage=3", "parallel.shard=2"],
];

#[test]
fn a_shift_and_the_shift_back_change_no_bit() {
    let expected = train(&[], None).summary;
    for grid in GRIDS {
        let there_and_back: Collectives = |tape, x| {
            let shifted = ops::exchange(tape, x, Axis::Data, 1)?;
            ops::exchange(tape, shifted, Axis::Data, -1)
        };
        let actual = train(grid, Some(there_and_back)).summary;
        assert_eq!(actual.weights_sha256, expected.weights_sha256, "{grid:?}");
        assert_eq!(actual.losses, expected.losses, "{grid:?}");
    }
}

#[test]
fn sums_and_gathers_are_planned() {
    let all: Collectives = |tape, x| {
        let summed = ops::all_reduce(tape, x, Axis::Data)?;
        let gathered = ops::all_gather(tape, summed, Axis::Data)?;
        ops::reduce_scatter(tape, gathered, Axis::Data)
    };
    for grid in GRIDS {
        let [first, second] = [train(grid, Some(all)), train(grid, Some(all))];
        assert_eq!(first.summary.weights_sha256, second.summary.weights_sha256, "{grid:?}");
        let alone = train(&[], None).summary.weights_sha256;
        assert_eq!(first.summary.weights_sha256 == alone, grid.is_empty(), "{grid:?}");
    }
}
