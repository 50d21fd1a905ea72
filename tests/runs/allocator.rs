//! Tests of allocator settings, preallocation, and checkpoints.

use plan::{plan, prepare};
use telemetry::Statistic;
use worker::Placement;

use super::{ONCE, Outcome, Row, SHARDED, check, figures, planned, run};
use crate::common::runs::{GPT, MLP, config};

/// Allocator settings that change reserved memory, alone and combined.
pub(super) const SETTINGS: [&str; 10] = [
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

/// Settings of a quick run that uses the large pool, several buckets, shards and accumulation.
const LARGE: [&str; 6] = [
    "model.sizes=[64, 512, 768, 64]",
    "optim.kind=adamw",
    "train.micro_batch_size=600",
    "train.global_batch_size=2400",
    "train.steps=2",
    "parallel.bucket_bytes=1048576",
];

/// Covers sizes for the large pool, allocator settings, and checkpoints.
#[test]
fn plans_of_large_models_equal_runs() {
    let table: &[Row<'_>] = &[
        // Checkpoints copy to the host and allocate nothing on the device.
        (GPT, &["parallel.data=2", "checkpoint.every=1"], ONCE),
        (MLP, &["checkpoint.every=2", "optim.kind=adamw"], ONCE),
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
            ONCE,
        ),
        (GPT, &["parallel.data=2", "memory.allocator=expandable_segments:True"], ONCE),
        (GPT, &["parallel.data=2", "memory.allocator=roundup_power2_divisions:4"], ONCE),
        (MLP, &["memory.allocator='max_split_size_mb:20,garbage_collection_threshold:0.5'"], ONCE),
    ];
    check(table);
}

/// Covers preallocated memory.
#[test]
fn plans_of_preallocated_memory_equal_runs() {
    let table: &[Row<'_>] = &[
        (GPT, &["memory.preallocate=true"], ONCE),
        (GPT, &["memory.preallocate=true", "parallel.data=2", SHARDED], ONCE),
        (GPT, &["memory.preallocate=true", "model.width=256", "memory.allocator=backend:native"], ONCE),
        (
            MLP,
            &["memory.preallocate=true", "memory.allocator='max_split_size_mb:20'", "parallel.pipeline=2"],
            ONCE,
        ),
    ];
    check(table);
}

#[test]
fn plans_equal_runs_with_every_allocator_setting() {
    for (index, setting) in SETTINGS.iter().enumerate() {
        let allocator = format!("memory.allocator='{setting}'");
        // Each setting with and without sharding, and with a limit low enough for garbage collection.
        let more: &[&str] = match index % 2 {
            0 => &["parallel.data=2", SHARDED],
            _ => &["parallel.data=2", "memory.limit_bytes=200000000"],
        };
        let overrides = [&LARGE[..], &[&allocator], more].concat();
        let report = run(MLP, &overrides);
        // The printed plan equals the run too.
        let setup = prepare(config(MLP, &overrides), Placement::Cpu).unwrap();
        for ran in &report.ranks {
            let plan = plan(&setup, ran.rank).unwrap();
            assert_eq!(figures(ran), planned(&plan.statistics), "rank {} of {overrides:?}", ran.rank);
            assert_eq!(
                ran.get(Statistic::BytesSent) % plan.step_traffic.total().bytes_sent,
                0,
                "{overrides:?}"
            );
        }
    }
}

/// Covers emptying the cache after some steps, before and between validations, with every kind of segment.
#[test]
fn plans_with_an_emptied_cache_equal_runs() {
    let steps = "train.steps=13";
    let table: &[Row<'_>] = &[
        (GPT, &["memory.empty_cache_every=1", "train.steps=4"], ONCE),
        (MLP, &["memory.empty_cache_every=2", steps, "memory.allocator=backend:native"], ONCE),
        (
            MLP,
            &["memory.empty_cache_every=4", "train.steps=12", "memory.allocator='max_split_size_mb:20'"],
            ONCE,
        ),
        (GPT, &["memory.empty_cache_every=3", steps, "train.validate_every=2", "parallel.data=2"], ONCE),
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
            ONCE,
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
            ONCE,
        ),
        (GPT, &["memory.empty_cache_every=3", "train.verify_every=2", steps, "parallel.data=2"], ONCE),
    ];
    check(table);
}

#[test]
fn an_emptied_cache_returns_idle_memory_and_changes_no_bit() {
    let with = |every: &str| {
        let every = format!("memory.empty_cache_every={every}");
        run(MLP, &[&LARGE[..], &["train.steps=4", &every]].concat())
    };
    let [never, second] = ["0", "2"].map(with);
    let reserved = |report: &Outcome| report.ranks[0].get(Statistic::ReservedBytes);
    assert!(reserved(&second) < reserved(&never), "{} and {}", reserved(&second), reserved(&never));
    assert_eq!(second.weights, never.weights);
}
