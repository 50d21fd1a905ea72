//! Grids with which a run continues when ranks are lost.

use crate::common::setup;
use config::RunConfig;
use plan::{DeviceRanks, PlanDevice, PlanOptions, PlanTarget, continuation, plan_run};

fn config(sets: &[&str]) -> RunConfig {
    (*setup(true, sets).config).clone()
}

fn options(device: &str, capacity: Option<u64>) -> PlanOptions {
    PlanOptions { target: PlanTarget::from_argument(device).unwrap(), capacity }
}

/// Setting: eight lanes in a step.
const LANES: &str = "parallel.lanes=8";

#[test]
fn a_run_goes_on_with_the_fastest_grid_of_the_ranks_that_are_left() {
    for (grid, left, ranks, expected) in [
        (&["parallel.data=4"][..], 4, 4, &[][..]),
        (&["parallel.data=4"], 6, 4, &[]),
        // With three ranks, one runs two of the eight lanes and the others three.
        (&["parallel.data=4"], 3, 3, &["parallel.data=3"]),
        (&["parallel.data=4"], 1, 1, &["parallel.data=1"]),
        // Six and seven ranks take as long as four: one of them runs two lanes.
        (&["parallel.data=8"], 7, 4, &["parallel.data=4"]),
        (&["parallel.data=4", "parallel.pipeline=2"], 7, 6, &["parallel.data=3"]),
        (&["parallel.data=4", "parallel.pipeline=2"], 2, 2, &["parallel.data=1"]),
        (
            &["parallel.data=4", "parallel.zero_stage=3", "parallel.shard=2"],
            3,
            3,
            &["parallel.data=3", "parallel.shard=0"],
        ),
        (&["parallel.data=4", "parallel.zero_stage=3", "parallel.shard=2"], 2, 2, &["parallel.data=2"]),
    ] {
        let config = config(&[grid, &[LANES]].concat());
        let found = continuation(&config, &options("cpu", None), left).unwrap();
        assert_eq!(
            (found.ranks, found.sets.iter().map(String::as_str).collect::<Vec<_>>()),
            (ranks, expected.to_vec()),
            "{grid:?}, {left}"
        );
        assert_eq!(config.with(&found.sets).unwrap().world_size(), ranks);
    }
}

#[test]
fn too_few_ranks_are_refused() {
    let config = config(&["parallel.data=2", "parallel.pipeline=2", LANES]);
    let error = continuation(&config, &options("cpu", None), 1).unwrap_err().to_string();
    assert!(
        error.starts_with("no grid has 1 rank or fewer: the configuration has parallel.data = 2"),
        "{error}"
    );
}

/// Checks that a run whose optimizer state fits only if sharded uses a higher ZeRO stage on fewer ranks.
#[test]
fn a_run_that_does_not_fit_otherwise_shards_more() {
    let grid = [
        "parallel.data=8",
        LANES,
        "parallel.zero_stage=1",
        "model.width=2048",
        "model.heads=16",
        "model.layers=12",
    ];
    let needs = |data: &str, stage: &str| {
        let config = config(&[&grid[..], &[data, stage]].concat());
        let device = PlanDevice::shipped().unwrap();
        let parts = device.overhead.parts(DeviceRanks::from_config(&config));
        let taken: u64 = parts.iter().map(|part| part.bytes).sum();
        plan_run(config, &options("h200", None)).unwrap().fit.needs + taken
    };
    let [stage1, stage2] =
        ["parallel.zero_stage=1", "parallel.zero_stage=2"].map(|s| needs("parallel.data=2", s));
    assert!(stage2 < stage1, "{stage2} {stage1}");
    let found = continuation(&config(&grid), &options("h200", Some(stage2)), 2).unwrap();
    assert_eq!(found.sets, ["parallel.data=2", "parallel.zero_stage=2"]);
    let error = continuation(&config(&grid), &options("h200", Some(stage2 / 4)), 2).unwrap_err().to_string();
    assert!(error.contains("does not fit on 2 ranks, also not with ZeRO stage 3"), "{error}");
}
