//! Tests of sharded state in plans: proposals, remedies, whole gradients, ranks without their own lane.

use crate::common::setup;
use config::RunConfig;
use plan::remedy::nearest;
use plan::roles::plan_all;
use plan::{
    DeviceRanks, Fit, FitOptions, PlanDevice, PlanOptions, PlanReport, PlanTarget, Proposals, RankForm,
    plan_run, propose,
};
use serde_json::Value;

/// Settings with enough parameters to dominate a rank's memory, and enough work to hide their transfers.
const WIDE: [&str; 9] = [
    "model.width=4096",
    "model.heads=32",
    "model.layers=12",
    "model.context=2048",
    "model.vocabulary=32768",
    "train.micro_batch_size=1",
    "train.global_batch_size=16",
    "parallel.bucket_bytes=67108864",
    "precision.compute=bf16",
];

fn config(sets: &[&str]) -> RunConfig {
    (*setup(true, &[&WIDE[..], sets].concat()).config).clone()
}

/// Returns the bytes that a rank reserves on an H200.
fn needs(sets: &[&str]) -> u64 {
    report(sets, None).fit.needs
}

/// Returns the bytes of a device that connected ranks cannot use.
fn taken() -> u64 {
    let parts = PlanDevice::shipped().unwrap().overhead.parts(DeviceRanks::CONNECTED);
    parts.iter().map(|part| part.bytes).sum()
}

fn options(capacity: Option<u64>) -> PlanOptions {
    PlanOptions { target: PlanTarget::from_argument("h200").unwrap(), capacity }
}

fn report(sets: &[&str], capacity: Option<u64>) -> PlanReport {
    plan_run(config(sets), &options(capacity)).unwrap()
}

/// Searches grids of `ranks` ranks for devices whose allocators have `bytes` bytes.
fn search(sets: &[&str], ranks: usize, bytes: u64) -> Proposals {
    let config = config(sets);
    let capacity = Some(bytes + taken());
    let fit = FitOptions { ranks, names_grid: false, most_allocations: u64::MAX };
    propose(config, &options(capacity), fit, &mut |_| ()).unwrap()
}

/// Returns the proposals with one pipeline stage, no tensor parallelism or recomputation, and micro-batches
/// of one sample.
fn plain(proposals: &Proposals) -> Vec<Value> {
    let all = proposals.to_json()["proposals"].as_array().unwrap().clone();
    let is_plain = |proposal: &Value| {
        proposal["grid"]["pipeline"] == 1
            && proposal["grid"]["tensor"] == 1
            && proposal["micro_batch_size"] == 1
            && proposal["recompute"] == false
    };
    all.into_iter().filter(is_plain).collect()
}

#[test]
fn the_lowest_stage_that_fits_is_proposed() {
    const GRID: [&str; 2] = ["parallel.data=4", "parallel.lanes=16"];
    let of_stage = |stage: &str| needs(&[&GRID[..], &[stage]].concat());
    let bytes = [0, 1, 2, 3].map(|stage| of_stage(&format!("parallel.zero_stage={stage}")));
    assert!(bytes.is_sorted_by(|more, less| more > less), "{bytes:?}");
    for (stage, bytes) in bytes.into_iter().enumerate().skip(1) {
        let proposals = search(&GRID, 4, bytes);
        let fitting = plain(&proposals);
        let stages: Vec<_> = fitting.iter().map(|proposal| &proposal["zero_stage"]).collect();
        assert_eq!(stages, [stage], "{proposals}");
        assert_eq!(fitting[0]["peak_reserved_bytes"], bytes, "{proposals}");
        assert!(proposals.to_string().contains("ZeRO"));
    }
    // With plenty of memory, ZeRO stages 2 and 3 are not proposed.
    let all = search(&GRID, 4, 1 << 36).to_json();
    let mut stages = all["proposals"].as_array().unwrap().iter().map(|proposal| &proposal["zero_stage"]);
    assert!(stages.all(|stage| stage.as_u64().unwrap() < 2), "{all}");
}

#[test]
fn groups_are_as_small_as_fits() {
    const GRID: [&str; 3] = ["parallel.data=16", "parallel.lanes=16", "parallel.zero_stage=2"];
    let [of_host, of_all] =
        ["parallel.shard=8", "parallel.shard=0"].map(|shard| needs(&[&GRID[..], &[shard]].concat()));
    assert!(of_host > of_all);
    for (bytes, owners) in [(of_host, 8), (of_host - 1, 16)] {
        let proposals = search(&GRID, 16, bytes);
        let fitting = plain(&proposals);
        let owner: Vec<_> = fitting.iter().map(|proposal| &proposal["ranks_that_share_state"]).collect();
        assert_eq!(owner, [owners], "{proposals}");
        let has_shard = fitting[0]["set"].as_array().unwrap().contains(&"parallel.shard=8".into());
        assert_eq!(has_shard, owners == 8, "{proposals}");
    }
}

#[test]
fn lanes_of_several_micro_batches_keep_whole_gradients() {
    let with = |stage: &str, lanes: &str| report(&["parallel.data=2", stage, lanes], None);
    for stage in ["parallel.zero_stage=2", "parallel.zero_stage=3"] {
        let many = with(stage, "parallel.lanes=16");
        let few = with(stage, "parallel.lanes=4");
        assert!(many.whole_gradients.is_none() && many.lanes.is_none());
        let whole = few.whole_gradients.unwrap();
        assert_eq!((whole.lanes, whole.micro_batches_per_lane), (4, 4));
        let sharded =
            few.plans.roles()[0].counters.get(telemetry::Statistic::LiveBytes(memory::Category::Gradient));
        assert!(whole.bytes > sharded / 2 && whole.bytes < sharded, "{whole:?}");
        let text = few.to_string();
        assert!(text.contains("a rank keeps whole gradients for lanes of 4 micro-batches"), "{text}");
        assert!(text.contains("parallel.lanes = 16 needs none"), "{text}");
        assert!(few.to_json().unwrap().contains("\"whole_gradients\""));
    }
    assert!(with("parallel.zero_stage=1", "parallel.lanes=4").whole_gradients.is_none());
}

#[test]
fn ranks_without_a_lane_repeat_one() {
    let report = report(&["parallel.data=3", "parallel.zero_stage=2", "parallel.lanes=16"], None);
    let balance = report.balance.unwrap();
    assert_eq!((balance.most_lanes, balance.fewest_lanes, balance.repeats_lanes), (6, 5, true));
    let text = report.to_string();
    let words = "ranks run 5 or 6 of 16 lanes and those with fewer repeat a lane of another rank, unused, or \
                 wait, 11.1 %";
    assert!(text.contains(words) && !text.contains("subtrees"), "{text}");
}

/// Checks that the message for a run that does not fit names the next ZeRO stage with which it fits.
#[test]
fn remedies_name_the_next_stage() {
    const GRID: [&str; 2] = ["parallel.data=4", "parallel.lanes=16"];
    let stages = ["parallel.zero_stage=1", "parallel.zero_stage=2", "parallel.zero_stage=3"];
    let remedy = |sets: &[&str], bytes: u64| {
        // A limit equal to the peak may divide segments differently.
        let limit = format!("memory.limit_bytes={}", bytes + (64 << 20));
        let setup = setup(true, &[&WIDE[..], &GRID, sets, &[&limit]].concat());
        let fit = Fit::from_plans(&setup, &plan_all(&setup).unwrap(), Vec::new(), RankForm::Threads);
        assert!(!fit.fits);
        nearest(&setup, &fit).unwrap().sets
    };
    for (before, stage) in
        [&[][..], &["parallel.zero_stage=1"], &["parallel.zero_stage=2"]].into_iter().zip(stages)
    {
        let bytes = needs(&[&GRID[..], &[stage]].concat());
        assert_eq!(remedy(before, bytes), [stage], "{before:?}");
    }
    // The last remedy uses one group and lanes of one micro-batch, which need no whole gradients.
    let most = needs(&["parallel.data=4", "parallel.zero_stage=3", "parallel.lanes=16"]);
    let sets = remedy(&["parallel.zero_stage=3", "parallel.shard=2", "parallel.lanes=4"], most);
    assert_eq!(sets, ["parallel.shard=0", "parallel.lanes=16"]);
}

#[test]
fn ranks_are_proposed_that_share_long_sequences() {
    for (context, shares) in [("model.context=32768", true), ("model.context=2048", false)] {
        let proposals = search(&[context, "train.global_batch_size=1"], 2, 1 << 37).to_json();
        let all = proposals["proposals"].as_array().unwrap();
        let sharing: Vec<_> = all.iter().filter(|proposal| proposal["grid"]["context"] == 2).collect();
        assert_eq!(!sharing.is_empty(), shares, "{context}: {proposals}");
        for proposal in sharing {
            let sets = proposal["set"].as_array().unwrap();
            assert!(sets.contains(&"parallel.context_lanes=4".into()), "{proposal}");
            let predicted = &proposal["predicted"];
            assert!(predicted["sequences_seconds"].as_f64().unwrap() > 0.0, "{proposal}");
            assert_eq!(predicted["layers_seconds"], 0.0, "{proposal}");
        }
    }
}
