//! Equal bytes: every rank of a run uses exactly what its plan says.

mod adapters;
mod allocator;
mod context;
mod data;
mod experts;
mod gpu;
mod grids;
mod models;
mod offload;
mod recompute;
mod tensor;
mod zero;

use crate::common::devices::alone;
use crate::common::runs::{GPT, config, train_in};
use memory::Statistics;
use plan::{plan, prepare};
use run::TrainReport;
use telemetry::{RankStatistics, Statistic};
use worker::{DeviceChoice, Placement};

const SHARDED: &str = "parallel.zero_stage=1";

fn figures_of(ran: &RankStatistics) -> [u64; 4] {
    [
        ran.get(Statistic::AllocatedBytes),
        ran.get(Statistic::ReservedBytes),
        ran.get(Statistic::PeakAllocatedBytes),
        ran.get(Statistic::PeakReservedBytes),
    ]
}

fn planned(statistics: &Statistics) -> [u64; 4] {
    [statistics.allocated(), statistics.reserved(), statistics.peak_allocated(), statistics.peak_reserved()]
}

fn run(text: &str, overrides: &[&str], device: DeviceChoice) -> TrainReport {
    let _alone = (device == DeviceChoice::Cuda).then(alone);
    let directory = tempfile::tempdir().unwrap();
    train_in(&directory.path().join("run"), config(text, overrides), device).unwrap()
}

/// Compares bytes of a rank's pools in host memory with those planned.
fn compare_host(ran: &RankStatistics, planned: &RankStatistics, overrides: &[&str]) {
    for figure in [Statistic::HostAllocatedBytes, Statistic::PeakHostReservedBytes] {
        let (ran, planned) = (ran.get(figure), planned.get(figure));
        assert_eq!(ran, planned, "{} of {overrides:?}", figure.name());
    }
}

/// Runs a configuration and compares every rank with its plan.
fn compare(text: &str, overrides: &[&str]) {
    let setup = prepare(config(text, overrides), Placement::Cpu).unwrap();
    let report = run(text, overrides, DeviceChoice::Cpu);
    assert!(report.unplanned.as_ref().is_some_and(Vec::is_empty), "{overrides:?}");
    assert!(report.divergences.is_empty(), "{:?}: {overrides:?}", report.divergences);
    assert_eq!(report.ranks.len(), setup.config.world_size());
    for ran in &report.ranks {
        let plan = plan(&setup, ran.rank).unwrap();
        assert_eq!(figures_of(ran), planned(&plan.statistics), "rank {} of {overrides:?}", ran.rank);
        compare_host(ran, &plan.counters, overrides);
        let offloads = overrides.iter().any(|set| set.contains("offload"));
        assert_eq!(ran.get(Statistic::PeakHostReservedBytes) > 0, offloads, "{overrides:?}");
        assert!(plan.statistics.allocated() > 0);
    }
}

/// Compares every row of a table: a configuration with overrides.
fn compare_all(table: &[(&str, &[&str])]) {
    for (text, overrides) in table {
        compare(text, overrides);
    }
}

/// Allocator settings that change what is reserved, alone and combined.
const SETTINGS: [&str; 10] = [
    "backend:native",
    "expandable_segments:True",
    "large_segment_size_mb:32",
    "max_split_size_mb:24",
    "max_split_size_mb:24,max_non_split_rounding_mb:40",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:[1:4,4:8,>:2]",
    "garbage_collection_threshold:0.8",
    "expandable_segments:True,roundup_power2_divisions:4,large_segment_size_mb:32",
    "per_process_memory_fraction:0.9",
];

#[test]
fn meta_ranks_as_threads_use_the_same_bytes() {
    for overrides in [&["parallel.data=1"][..], &["parallel.data=2"], &["parallel.data=4", SHARDED]] {
        let overrides = [overrides, &["checkpoint.every=3"]].concat();
        let (cpu, meta) = (run(GPT, &overrides, DeviceChoice::Cpu), run(GPT, &overrides, DeviceChoice::Meta));
        for (cpu, meta) in cpu.ranks.iter().zip(&meta.ranks) {
            assert_eq!(figures_of(cpu), figures_of(meta));
        }
    }
}

#[test]
fn memory_after_each_step_is_constant() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    train_in(&run_dir, config(GPT, &["train.steps=30", "parallel.data=2"]), DeviceChoice::Cpu).unwrap();
    let lines = std::fs::read_to_string(run_dir.join("metrics.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 30);
    let of = |line: &serde_json::Value| (line["allocated_bytes"].as_u64(), line["reserved_bytes"].as_u64());
    assert!(of(&lines[1]).0.is_some());
    assert!(lines[1..].iter().all(|line| of(line) == of(&lines[1])));
}
