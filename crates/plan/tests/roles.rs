//! Tests that the plan of a role is the plan of each of its ranks.

use crate::common::setup;
use plan::plan;
use plan::roles::plan_all;

/// Settings with layers that ranks may share, and several parts of the gradient norm.
const GPT: [&str; 4] =
    ["model.layers=4", "parallel.tensor_lanes=2", "parallel.context_lanes=4", "parallel.lanes=4"];

/// Runs on imitated GPUs, where the norm's address tables differ between ranks.
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
        // Three and two lanes per rank, then five and four in rounds of three.
        &["lanes=5", "data=4", "zero_stage=2", "shard=2"],
        &["lanes=9", "data=6", "zero_stage=2", "shard=3"],
        &["lanes=7", "data=7", "zero_stage=1"],
        &["lanes=7", "data=6", "zero_stage=3", "shard=2"],
        &["lanes=10", "data=6", "zero_stage=2", "shard=2", "tensor=2"],
    ] {
        let batch = axes[0].strip_prefix("lanes=").map_or(8, |lanes| 2 * lanes.parse::<usize>().unwrap());
        let batch = format!("train.global_batch_size={batch}");
        let axes: Vec<_> = axes.iter().map(|axis| format!("parallel.{axis}")).collect();
        let sets: Vec<_> =
            GPT.into_iter().chain([batch.as_str()]).chain(axes.iter().map(String::as_str)).collect();
        let setup = setup(true, &sets);
        for (rank, of_role) in plan_all(&setup).unwrap().by_rank() {
            let own = plan(&setup, rank).unwrap();
            assert_eq!(own.statistics, of_role.statistics, "{axes:?}, rank {rank}");
        }
    }
}
