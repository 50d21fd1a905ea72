//! Settings of the allocator, preallocation, and checkpoints.

use plan::{plan, prepare};
use telemetry::Statistic;
use worker::{DeviceChoice, Placement};

use super::{SETTINGS, SHARDED, compare_all, figures_of, planned, run};
use crate::common::runs::{GPT, MLP, config};

/// A quick configuration that uses the large pool, several buckets, shards and accumulation.
const LARGE: [&str; 6] = [
    "model.sizes=[64, 512, 768, 64]",
    "optim.kind=adamw",
    "train.micro_batch_size=600",
    "train.global_batch_size=2400",
    "train.steps=2",
    "parallel.bucket_bytes=1048576",
];

/// Sizes for the large pool, settings of the allocator, and checkpoints.
#[test]
fn plans_of_large_models_equal_runs() {
    let table: &[(&str, &[&str])] = &[
        // Checkpoints copy to the host and allocate nothing on the device.
        (GPT, &["parallel.data=2", "checkpoint.every=1"]),
        (MLP, &["checkpoint.every=2", "optim.kind=adamw"]),
        // Large enough for the large pool.
        (
            GPT,
            &[
                "model.width=256",
                "model.context=128",
                "train.micro_batch_size=4",
                "train.global_batch_size=16",
                "train.steps=2",
            ],
        ),
        (GPT, &["parallel.data=2", "memory.allocator=expandable_segments:True"]),
        (GPT, &["parallel.data=2", "memory.allocator=roundup_power2_divisions:4"]),
        (MLP, &["memory.allocator='max_split_size_mb:20,garbage_collection_threshold:0.5'"]),
    ];
    compare_all(table);
}

/// Memory is preallocated.
#[test]
fn plans_of_preallocated_memory_equal_runs() {
    let table: &[(&str, &[&str])] = &[
        (GPT, &["memory.preallocate=true"]),
        (GPT, &["memory.preallocate=true", "parallel.data=2", SHARDED]),
        (GPT, &["memory.preallocate=true", "model.width=256", "memory.allocator=backend:native"]),
        (MLP, &["memory.preallocate=true", "memory.allocator='max_split_size_mb:20'", "parallel.pipeline=2"]),
    ];
    compare_all(table);
}

#[test]
fn plans_equal_runs_with_every_allocator_setting() {
    for (index, setting) in SETTINGS.iter().enumerate() {
        let allocator = format!("memory.allocator='{setting}'");
        // Each setting with and without sharding, and with a limit from which garbage collection counts.
        let more: &[&str] = match index % 2 {
            0 => &["parallel.data=2", SHARDED],
            _ => &["parallel.data=2", "memory.limit_bytes=200000000"],
        };
        let overrides = [&LARGE[..], &[&allocator], more].concat();
        let report = run(MLP, &overrides, DeviceChoice::Cpu);
        assert!(report.unplanned.is_some_and(|ranks| ranks.is_empty()), "{overrides:?}");
        // The printed plan equals the run too.
        let setup = prepare(config(MLP, &overrides), Placement::Cpu).unwrap();
        for ran in &report.ranks {
            let plan = plan(&setup, ran.rank).unwrap();
            assert_eq!(figures_of(ran), planned(&plan.statistics), "rank {} of {overrides:?}", ran.rank);
            assert_eq!(
                ran.get(Statistic::BytesSent) % plan.step_traffic.total().bytes_sent,
                0,
                "{overrides:?}"
            );
        }
    }
}

/// The cache is emptied after some steps, before and between validations, with every kind of segment.
#[test]
fn plans_with_an_emptied_cache_equal_runs() {
    let steps = "train.steps=13";
    let table: &[(&str, &[&str])] = &[
        (GPT, &["memory.empty_cache_every=1", "train.steps=4"]),
        (MLP, &["memory.empty_cache_every=2", steps, "memory.allocator=backend:native"]),
        (MLP, &["memory.empty_cache_every=4", "train.steps=12", "memory.allocator='max_split_size_mb:20'"]),
        (GPT, &["memory.empty_cache_every=3", steps, "train.validate_every=2", "parallel.data=2"]),
        (
            GPT,
            &[
                "memory.empty_cache_every=2",
                steps,
                "train.validate_every=5",
                "memory.allocator=backend:native",
                "parallel.data=2",
                "parallel.pipeline=2",
                SHARDED,
            ],
        ),
        (
            GPT,
            &[
                "memory.empty_cache_every=2",
                "train.verify_every=2",
                "train.steps=6",
                "parallel.data=2",
                "parallel.pipeline=2",
                "parallel.zero_stage=2",
            ],
        ),
        (GPT, &["memory.empty_cache_every=3", "train.verify_every=2", steps, "parallel.data=2"]),
    ];
    compare_all(table);
}

#[test]
fn an_emptied_cache_returns_idle_memory_and_changes_no_bit() {
    let with = |every: &str| {
        let every = format!("memory.empty_cache_every={every}");
        run(MLP, &[&LARGE[..], &["train.steps=4", &every]].concat(), DeviceChoice::Cpu)
    };
    let [never, second] = ["0", "2"].map(with);
    let reserved = |report: &run::TrainReport| report.ranks[0].get(Statistic::ReservedBytes);
    assert!(reserved(&second) < reserved(&never), "{} and {}", reserved(&second), reserved(&never));
    assert_eq!(second.summary.weights_sha256, never.summary.weights_sha256);
}
