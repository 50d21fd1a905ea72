//! Tests that a plan's cost depends on its distinct work, and that skipping repeated work changes no figure.

use crate::common::setup;
use device::Description;
use parallel::pipeline::PlanWork;
use plan::roles::plan_all;
use plan::{Plan, plan};
use telemetry::Statistic;
use worker::{Placement, Setup};

/// Plans a rank, skipping repeated work in parts with at least `allocations` allocations.
fn planned(setup: &Setup, rank: usize, allocations: u64) -> Plan {
    let work = PlanWork { skips_from: allocations, most: u64::MAX };
    plan(&Setup { plan_work: Some(work), ..setup.clone() }, rank).unwrap()
}

/// Returns all figures of a plan that skipping must not affect.
fn figures(plan: &Plan) -> impl PartialEq + std::fmt::Debug {
    let statistics: Vec<u64> = [
        Statistic::AllocatedBytes,
        Statistic::ReservedBytes,
        Statistic::PeakAllocatedBytes,
        Statistic::PeakReservedBytes,
        Statistic::RequestedBytes,
    ]
    .map(|statistic| plan.counters.get(statistic))
    .to_vec();
    let peaks: Vec<u64> =
        memory::Category::ALL.map(|category| plan.counters.get(Statistic::PeakBytes(category))).to_vec();
    let parts: Vec<_> = plan.parts.list().iter().map(|part| (part.part, part.step, part.figures)).collect();
    let index = plan.parts.peak().map(|peak| (peak.step, peak.peak.bytes, peak.live.by_category()));
    (statistics, peaks, parts, plan.step_traffic, index)
}

#[test]
fn skipping_repeated_work_changes_no_figure() {
    let many = "train.global_batch_size=1024";
    let table: &[&[&str]] = &[
        &[],
        &["parallel.lanes=1"],
        &["parallel.lanes=32"],
        &["parallel.lanes=16"],
        &["parallel.data=2", "parallel.zero_stage=1"],
        &["parallel.data=4", "parallel.lanes=4", "parallel.reduction=nccl"],
        &["parallel.lanes=256", "parallel.data=3", "train.global_batch_size=512"],
        &["parallel.lanes=16", "parallel.data=3", "parallel.zero_stage=1", many],
        &["parallel.lanes=16", "parallel.data=3", "parallel.zero_stage=2", many],
        &["parallel.lanes=32", "parallel.data=2", "parallel.zero_stage=3", "memory.recompute=block"],
        &["parallel.lanes=16", "parallel.data=4", "parallel.zero_stage=3", "parallel.shard=2", many],
        &["parallel.pipeline=2", "parallel.data=3", many],
        &["train.validation_micro_batches=40", "train.validate_every=1"],
        &["memory.recompute=block", many],
        &["memory.allocator=roundup_power2_divisions:4", many],
        &["memory.empty_cache_every=2", "train.steps=7"],
        &["memory.empty_cache_every=3", "train.steps=20", "train.validate_every=2", "parallel.data=2"],
        &["parallel.pipeline=2"],
        &["parallel.pipeline=2", many],
        &["parallel.pipeline=2", "parallel.schedule=gpipe"],
        &["model.layers=8", "parallel.pipeline=4", many],
        &["model.layers=8", "parallel.pipeline=4", "parallel.schedule=zero-bubble", many],
        &["model.layers=8", "parallel.pipeline=2", "parallel.schedule=interleaved", many],
        &["model.layers=8", "parallel.pipeline=2", "parallel.data=2", many],
        &["model.layers=16", "parallel.pipeline=8", "parallel.schedule=interleaved"],
    ];
    for gpu in [false, true] {
        for sets in table {
            let setup = setup(gpu, sets);
            for rank in 0..setup.config.world_size() {
                let [whole, short] = [u64::MAX, 0].map(|from| planned(&setup, rank, from));
                assert_eq!(figures(&whole), figures(&short), "rank {rank} of {sets:?}");
                let done = |plan: &Plan| plan.statistics.handed_out();
                let shorter = done(&short) < done(&whole);
                assert!(shorter || !sets.contains(&many), "nothing was skipped on {rank} of {sets:?}");
            }
        }
    }
}

/// Checks that the largest accepted counts need no more allocations than their distinct work.
#[test]
fn large_counts_are_planned_with_few_allocations() {
    let table: &[(&[&str], u64)] = &[
        (&["train.steps=1099511627776"], 10_000),
        (&["train.steps=1099511627776", "train.validate_every=1"], 10_000),
        (&["train.steps=1099511627776", "train.validate_every=1000000007"], 10_000),
        (&["train.steps=1099511627776", "memory.empty_cache_every=1"], 20_000),
        (&["train.steps=1099511627776", "memory.empty_cache_every=2"], 20_000),
        (&["train.steps=1099511627776", "memory.empty_cache_every=7", "train.validate_every=1000"], 20_000),
        (&["train.micro_batch_size=1", "train.global_batch_size=131072"], 10_000),
        (&["train.micro_batch_size=1", "train.global_batch_size=131072", "parallel.lanes=131072"], 10_000),
        (&["train.micro_batch_size=1", "train.global_batch_size=131072", "parallel.lanes=65536"], 10_000),
        (&["train.micro_batch_size=16777216", "train.global_batch_size=16777216"], 10_000),
        (&["train.validation_micro_batches=1048576"], 10_000),
    ];
    for (sets, most) in table {
        let mut setup = setup(true, sets);
        let description = Description { total_bytes: 1 << 50, ..setup.placement.description() };
        setup.placement = Placement::Meta(description);
        let plan = planned(&setup, 0, 0);
        let done = plan.statistics.handed_out();
        assert!(done < *most, "{done} allocations for {sets:?}");
    }
}

/// Maximum number of allocations that a plan makes over all roles.
const MOST_ALLOCATIONS: u64 = 1 << 22;

/// Checks that pipelines are planned within the limit or refused before exceeding it.
#[test]
fn a_plan_that_does_not_repeat_is_refused() {
    let table: &[(usize, usize, usize, bool)] = &[
        (64, 64, 128, true),
        (64, 64, 4096, false),
        (1000, 64, 1024, false),
        (256, 256, 1024, false),
        (4, 4, 65536, true),
    ];
    for (layers, stages, micro_batches, planned) in table {
        let sets = [
            format!("model.layers={layers}"),
            format!("parallel.pipeline={stages}"),
            "train.micro_batch_size=1".to_owned(),
            "parallel.lanes=1".to_owned(),
            format!("train.global_batch_size={micro_batches}"),
        ];
        let setup = setup(true, &sets.each_ref().map(String::as_str));
        match plan_all(&setup) {
            Ok(plans) => {
                let done: u64 = plans.roles().iter().map(|plan| plan.statistics.handed_out()).sum();
                assert!(*planned && done <= MOST_ALLOCATIONS, "{done} allocations for {sets:?}");
            }
            Err(error) => {
                let message = error.to_string();
                assert!(!planned && error.is_refused(), "{sets:?}: {message}");
                assert!(message.contains("use fewer, larger micro-batches or fewer stages"), "{message}");
            }
        }
    }
}
