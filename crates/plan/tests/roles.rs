//! Ranks with a common role: the plan of the role is that of each of its ranks.
#![allow(clippy::unwrap_used, reason = "in tests, a panic is the report of a failure")]

mod common;

use common::setup;
use plan::plan;
use plan::roles::plan_all;

/// Layers that ranks may share, with gradients whose norm takes several parts.
const GPT: [&str; 5] = [
    "model.layers=4",
    "parallel.tensor_lanes=2",
    "parallel.context_lanes=4",
    "train.global_batch_size=8",
    "parallel.lanes=4",
];

/// On GPUs, where the tables of norms differ between ranks.
#[test]
fn the_plan_of_a_role_is_that_of_each_of_its_ranks() {
    for axes in [
        &["context=2"][..],
        &["context=2", "data=2"],
        &["context=2", "tensor=2"],
        &["context=2", "pipeline=2"],
        &["context=2", "data=2", "zero_stage=1"],
        &["tensor=2", "data=2", "zero_stage=3"],
        &["tensor=2", "pipeline=2"],
    ] {
        let axes: Vec<_> = axes.iter().map(|axis| format!("parallel.{axis}")).collect();
        let sets: Vec<_> = GPT.into_iter().chain(axes.iter().map(String::as_str)).collect();
        let setup = setup(true, &sets);
        for (rank, of_role) in plan_all(&setup).unwrap().by_rank() {
            let own = plan(&setup, rank).unwrap();
            assert_eq!(own.statistics, of_role.statistics, "{axes:?}, rank {rank}");
        }
    }
}
