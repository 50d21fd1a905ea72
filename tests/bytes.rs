//! Equal bytes: every rank of a run uses exactly what its plan says.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests, a panic is the report of a failure")]

mod common;

use common::devices::gpu;
use common::runs::{CHAT, GPT, LLAMA, MLP, config, train_in};
use common::runs::{MIXTURE, PACKED, SEQUENTIAL, SEQUENTIAL_MIXTURE, TOKENIZED, TOKENS};
use memory::{Category, Statistics};
use plan::{PlanDevice, plan, prepare};
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
    let directory = tempfile::tempdir().unwrap();
    train_in(&directory.path().join("run"), config(text, overrides), device).unwrap()
}

/// Runs a configuration and compares every rank with its plan.
fn compare(text: &str, overrides: &[&str]) {
    let setup = prepare(config(text, overrides), Placement::Cpu).unwrap();
    let report = run(text, overrides, DeviceChoice::Cpu);
    assert!(report.unplanned.as_ref().is_some_and(Vec::is_empty), "{overrides:?}");
    assert_eq!(report.ranks.len(), setup.config.world_size());
    for ran in &report.ranks {
        let plan = plan(&setup, ran.rank).unwrap();
        assert_eq!(figures_of(ran), planned(&plan.statistics), "rank {} of {overrides:?}", ran.rank);
        assert!(plan.statistics.allocated() > 0);
    }
}

/// Every schedule on several grids, with and without sharding, with one and several micro-batches a lane.
#[test]
fn pipeline_plans_equal_runs() {
    let more: [&[&str]; 4] = [
        &["parallel.pipeline=2"],
        &["parallel.pipeline=4", "parallel.lanes=2", "checkpoint.every=2"],
        &["parallel.pipeline=2", "parallel.data=2", "train.validation_micro_batches=1"],
        &["parallel.pipeline=2", "parallel.data=2", SHARDED, "parallel.bucket_bytes=512"],
    ];
    for schedule in ["gpipe", "1f1b", "interleaved", "zero-bubble"] {
        let schedule = format!("parallel.schedule={schedule}");
        for grid in more {
            let common = ["model.layers=8", "train.global_batch_size=16", "train.steps=2", &schedule];
            compare(GPT, &[&common[..], grid].concat());
        }
    }
    compare(MLP, &["parallel.pipeline=5"]);
    compare(MLP, &["parallel.pipeline=2", "parallel.data=4", "optim.kind=adamw", SHARDED]);
}

#[test]
fn plans_equal_runs() {
    let table: &[(&str, &[&str])] = &[
        (MLP, &["parallel.data=1"]),
        (MLP, &["parallel.data=2"]),
        (MLP, &["parallel.data=4"]),
        (MLP, &["model.activation=gelu", "train.global_batch_size=40"]),
        (GPT, &["parallel.data=1"]),
        (GPT, &["parallel.data=2"]),
        (GPT, &["parallel.data=4"]),
        // Fewer validation micro-batches than ranks, so that their roles differ.
        (GPT, &["parallel.data=4", "train.validation_micro_batches=2"]),
        (GPT, &["parallel.data=2", "optim.kind=sgd", "train.steps=1"]),
        // Ranks own different shards of the optimizer state.
        (GPT, &["parallel.data=2", SHARDED]),
        (GPT, &["parallel.data=4", SHARDED, "parallel.bucket_bytes=512"]),
        (GPT, &["parallel.data=4", SHARDED, "model.width=256", "model.context=128", "train.steps=2"]),
        (MLP, &["parallel.data=2", SHARDED]),
        (MLP, &["parallel.data=4", SHARDED, "optim.kind=adamw", "checkpoint.every=2"]),
        (GPT, &["parallel.data=4", "parallel.reduction=nccl"]),
        (GPT, &["parallel.data=2", SHARDED, "parallel.reduction=nccl"]),
        // Recomputed activations.
        (GPT, &["memory.recompute=block"]),
        (GPT, &["model.layers=5", "memory.recompute=2", "parallel.data=2", SHARDED]),
        (
            GPT,
            &[
                "model.layers=5",
                "memory.recompute=2",
                "memory.recompute_layers=3",
                "train.global_batch_size=16",
            ],
        ),
        (GPT, &["memory.recompute=auto", "parallel.data=2"]),
        (MLP, &["memory.recompute=2", "parallel.data=4"]),
        (MLP, &["memory.recompute=block", "model.activation=gelu"]),
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
        // Llama, alone, sharded, recomputed and in pipelines.
        (LLAMA, &[]),
        (LLAMA, &["model.qk_norm=true", "parallel.data=2", SHARDED]),
        (LLAMA, &["model.tied=true", "memory.recompute=block", "parallel.data=4"]),
        (LLAMA, &["model.tied=true", "parallel.pipeline=2", "parallel.data=2"]),
        (LLAMA, &["model.qkv_bias=true", "parallel.pipeline=4", "parallel.schedule=zero-bubble"]),
        // Frozen parameters: of a stage, sharded, recomputed, biases alone.
        (GPT, &["train.freeze=['w?e.*', 'h.0.*']", "parallel.pipeline=2", "parallel.data=2"]),
        (GPT, &["train.freeze=['h.1.*', 'ln_f.*']", "parallel.data=4", SHARDED, "memory.recompute=block"]),
        (LLAMA, &["train.freeze=['*.weight']", "model.qkv_bias=true", "parallel.data=2"]),
        (
            LLAMA,
            &[
                "train.freeze=['model.layers.[0-2].*']",
                "parallel.pipeline=4",
                "parallel.schedule=zero-bubble",
                "checkpoint.every=2",
            ],
        ),
        (MLP, &["train.freeze=['0.*', '4.*']", "parallel.pipeline=5"]),
        // Dropout, other heads, and losses in pieces of the vocabulary.
        (GPT, &["model.dropout=0.2", "parallel.data=2", SHARDED]),
        (GPT, &["model.dropout=0.2", "parallel.pipeline=2", "parallel.data=2", "memory.recompute=block"]),
        (
            GPT,
            &["model.tied=false", "model.biases=false", "model.positions=sinusoidal", "parallel.pipeline=2"],
        ),
        (LLAMA, &["model.dropout=0.2", "model.key_value_heads=1", "memory.recompute=2"]),
        (LLAMA, &["model.dropout=0.2", "parallel.pipeline=2", "parallel.schedule=zero-bubble"]),
        (LLAMA, &["model.loss_pieces=3", "model.logit_soft_cap=4.0", "parallel.data=2"]),
        (LLAMA, &["model.loss_pieces=3", "parallel.pipeline=2", "parallel.schedule=zero-bubble"]),
        (GPT, &["model.loss_pieces=2", "model.vocabulary=1000", "parallel.data=4", SHARDED]),
        (GPT, &["model.logit_soft_cap=4.0", "parallel.pipeline=2", "parallel.data=2"]),
        // Conversations, padded and packed.
        (CHAT, &["parallel.data=2", SHARDED]),
        (CHAT, &["data.pack_documents=true", "data.document_mask=true", "parallel.pipeline=2"]),
        // Low-rank adapters.
        (LLAMA, &["lora.rank=4", "parallel.data=2", SHARDED]),
        (LLAMA, &["lora.rank=4", "lora.dropout=0.1", "memory.recompute=block", "parallel.pipeline=2"]),
        (
            LLAMA,
            &[
                "lora.rank=2",
                "lora.targets=['k_proj', 'down_proj']",
                "parallel.pipeline=4",
                "checkpoint.every=2",
            ],
        ),
        (GPT, &["lora.rank=8", "lora.targets=['c_attn']", "parallel.data=4"]),
        (MLP, &["lora.rank=2", "model.activation=gelu", "parallel.pipeline=5"]),
        // Memory is preallocated.
        (GPT, &["memory.preallocate=true"]),
        (GPT, &["memory.preallocate=true", "parallel.data=2", SHARDED]),
        (GPT, &["memory.preallocate=true", "model.width=256", "memory.allocator=backend:native"]),
        (MLP, &["memory.preallocate=true", "memory.allocator='max_split_size_mb:20'", "parallel.pipeline=2"]),
        // Last lanes whose buckets pass through, in one bucket and in many, alone and sharded.
        (GPT, &["parallel.lanes=8", "train.global_batch_size=16"]),
        (GPT, &["parallel.lanes=8", "train.global_batch_size=16", "parallel.bucket_bytes=512"]),
        (GPT, &["parallel.lanes=8", "train.global_batch_size=16", "parallel.data=2", SHARDED]),
        (
            GPT,
            &[
                "parallel.lanes=8",
                "train.global_batch_size=16",
                "parallel.pipeline=2",
                "parallel.schedule=zero-bubble",
            ],
        ),
        // Several micro-batches in a lane, and several lanes on a rank.
        (GPT, &["parallel.data=2", SHARDED, "train.global_batch_size=32"]),
        (MLP, &["parallel.data=2", "train.global_batch_size=320", "parallel.lanes=2"]),
    ];
    for (text, overrides) in table {
        compare(text, overrides);
    }
}

/// Data of every kind, alone, sharded, recomputed and in a pipeline.
#[test]
fn plans_of_every_kind_of_data_equal_runs() {
    let grids: [&[&str]; 4] = [
        &[],
        &["parallel.data=2", SHARDED],
        &["parallel.pipeline=2"],
        &["memory.recompute=block", "parallel.data=4", "data.prefetch=0"],
    ];
    let table: [(&str, &[&str]); 7] = [
        (GPT, &TOKENS),
        (LLAMA, &SEQUENTIAL),
        (GPT, &PACKED),
        (LLAMA, &PACKED),
        (GPT, &MIXTURE),
        (LLAMA, &SEQUENTIAL_MIXTURE),
        (GPT, &TOKENIZED),
    ];
    for (text, sources) in table {
        for grid in grids {
            compare(text, &[sources, grid, &["train.steps=2"]].concat());
        }
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

/// A quick configuration that uses the large pool, several buckets, shards and accumulation.
const LARGE: [&str; 6] = [
    "model.sizes=[64, 512, 768, 64]",
    "optim.kind=adamw",
    "train.micro_batch_size=600",
    "train.global_batch_size=2400",
    "train.steps=2",
    "parallel.bucket_bytes=1048576",
];

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
            assert_eq!(ran.get(Statistic::BytesSent) % plan.step_traffic.bytes_sent, 0, "{overrides:?}");
        }
    }
}

/// On a GPU the plan, made on Meta, equals the run; the CPU differs from both in workspaces only.
#[test]
fn gpu_plans_equal_runs() {
    if !gpu() {
        return;
    }
    let table: &[(&str, &[&str])] = &[
        (MLP, &[]),
        (MLP, &["model.activation=gelu", "train.global_batch_size=40"]),
        (MLP, &["precision.compute=bf16", "optim.kind=adamw"]),
        (GPT, &[]),
        (
            GPT,
            &[
                "model.width=256",
                "model.context=128",
                "train.micro_batch_size=4",
                "train.global_batch_size=16",
                "train.steps=3",
            ],
        ),
        (GPT, &["model.width=256", "model.heads=4", "precision.compute=bf16", "train.steps=3"]),
        (GPT, &["model.width=256", "model.heads=4", "precision.compute=bf16", "precision.gradients=bf16"]),
        (MLP, &["precision.compute=bf16", "precision.gradients=bf16", "train.global_batch_size=40"]),
        (
            GPT,
            &[
                "model.width=256",
                "model.heads=4",
                "precision.compute=bf16",
                "memory.allocator=backend:native",
            ],
        ),
        (GPT, &["model.width=256", "memory.allocator=roundup_power2_divisions:4", "checkpoint.every=2"]),
        (GPT, &["optim.kind=sgd", "train.steps=1", "memory.allocator=max_split_size_mb:20"]),
        (GPT, &["model.width=256", "memory.recompute=block"]),
        (
            GPT,
            &[
                "model.width=256",
                "model.heads=4",
                "model.layers=5",
                "precision.compute=bf16",
                "memory.recompute=2",
            ],
        ),
        (GPT, &["model.dropout=0.2"]),
        (GPT, &["model.width=128", "model.dropout=0.2", "precision.compute=bf16", "memory.recompute=block"]),
        (GPT, &["model.loss_pieces=2", "model.vocabulary=1000", "model.tied=false"]),
        (GPT, &["model.width=128", "model.loss_pieces=2", "precision.compute=bf16"]),
        (LLAMA, &["model.logit_soft_cap=4.0", "model.key_value_heads=1"]),
        (LLAMA, &["model.width=256", "model.dropout=0.2", "model.qk_norm=true", "precision.compute=bf16"]),
        (
            LLAMA,
            &[
                "model.width=256",
                "model.tied=true",
                "model.loss_pieces=3",
                "model.logit_soft_cap=4.0",
                "precision.compute=bf16",
                "precision.gradients=bf16",
            ],
        ),
    ];
    let half = ["model.width=256", "model.context=128", "model.heads=4", "precision.compute=bf16"];
    let with = |setting: &str| {
        half.into_iter().map(str::to_owned).chain([format!("memory.allocator='{setting}'")]).collect()
    };
    let settings: Vec<Vec<String>> = SETTINGS.iter().map(|setting| with(setting)).collect();
    let settings: Vec<Vec<&str>> =
        settings.iter().map(|sets| sets.iter().map(String::as_str).collect()).collect();
    let table: Vec<(&str, &[&str])> =
        table.iter().copied().chain(settings.iter().map(|sets| (GPT, &sets[..]))).collect();
    for (text, overrides) in &table {
        let setup = prepare(config(text, overrides), Placement::one_gpu(0).unwrap()).unwrap();
        let report = run(text, overrides, DeviceChoice::Cuda);
        let (ran, plan) = (&report.ranks[0], plan(&setup, 0).unwrap());
        assert_eq!(figures_of(ran), planned(&plan.statistics), "{overrides:?}");
        if overrides.contains(&"precision.compute=bf16") {
            continue;
        }
        let host = run(text, &[overrides, &["parallel.data=1"][..]].concat(), DeviceChoice::Cpu);
        for category in Category::ALL.into_iter().filter(|category| *category != Category::Workspace) {
            let statistic = Statistic::LiveBytes(category);
            assert_eq!(host.ranks[0].get(statistic), ran.get(statistic), "{statistic:?} of {overrides:?}");
        }
    }
}

#[test]
fn zero_stage_1_divides_only_the_moments() {
    // Every parameter has a multiple of 128 elements, so no tensor is rounded up.
    const MODEL: [&str; 4] =
        ["model.width=128", "model.context=64", "train.steps=1", "parallel.bucket_bytes=1000000"];
    let of =
        |data: &str, more: &[&str]| run(GPT, &[&MODEL[..], &[data], more].concat(), DeviceChoice::Cpu).ranks;
    let live = |ran: &RankStatistics, category| ran.get(Statistic::LiveBytes(category));
    for ranks in [2, 4] {
        let data = format!("parallel.data={ranks}");
        let (whole, divided) = (of(&data, &[]), of(&data, &[SHARDED]));
        let elements = live(&whole[0], Category::Parameter) / 4;
        let state = |ran: &RankStatistics| live(ran, Category::OptimizerState);
        // Besides two moments: the norm's sums (one per 4096 elements) and its result, equal on every rank.
        let norm = state(&whole[0]) - 8 * elements;
        assert_eq!(norm, (elements / 4096 * 4).next_multiple_of(512) + 512);
        assert_eq!(divided.iter().map(state).sum::<u64>(), 8 * elements + ranks * norm);
        // Bytes of buckets besides gradients; the token embedding has two gradients.
        let bucketed = live(&whole[0], Category::Gradient) / 4;
        let padding = bucketed - elements - 256 * 128;
        for (whole, divided) in whole.iter().zip(&divided) {
            for category in Category::ALL.into_iter().filter(|c| *c != Category::OptimizerState) {
                assert_eq!(live(divided, category), live(whole, category), "{category:?}");
            }
            let (saved, fair) = (state(whole) - state(divided), 8 * (elements - elements / ranks));
            assert!(saved.abs_diff(fair) <= 8 * padding, "{saved} of {fair}, within {}", 8 * padding);
        }
    }
}

/// The plan is for a GPU that need not be present.
#[test]
fn bf16_gradients_halve_only_their_own_bytes() {
    const RANKS: u64 = 2;
    // One bucket per gradient and one for the loss: 128 f32 per rank.
    const LOSS: u64 = 4 * 128 * RANKS;
    // The largest gradient: 256 tokens, or a hidden layer of 4 · 32.
    const LARGEST: u64 = 256 * 32;
    let of = |gradients: &str, more: &[&str]| {
        let gradients = format!("precision.gradients={gradients}");
        let sets =
            ["model.heads=1", "precision.compute=bf16", "parallel.data=2", "parallel.bucket_bytes=512"];
        let config = config(GPT, &[&sets[..], &[&gradients], more].concat());
        let setup =
            prepare(config, Placement::Meta(PlanDevice::shipped().unwrap().description(true))).unwrap();
        plan(&setup, 0).unwrap().counters
    };
    for (more, scratch) in [(&[][..], LARGEST), (&[SHARDED], LARGEST), (&["parallel.reduction=nccl"], 0)] {
        let (single, half) = (of("f32", more), of("bf16", more));
        for category in Category::ALL {
            let [single, half] =
                [&single, &half].map(|counters| counters.get(Statistic::LiveBytes(category)));
            match category {
                Category::Gradient => assert_eq!(single - LOSS, 2 * (half - LOSS), "{more:?}"),
                Category::Communication => assert_eq!(single - half, 2 * scratch, "{more:?}"),
                _ => assert_eq!(single, half, "{category:?} {more:?}"),
            }
        }
    }
}

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
fn a_limit_too_small_is_refused_with_one_that_suffices() {
    let needs = {
        let setup = prepare(config(GPT, &[]), Placement::Cpu).unwrap();
        plan(&setup, 0).unwrap().statistics.peak_reserved()
    };
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let limited = |bytes: u64| config(GPT, &[&format!("memory.limit_bytes={bytes}")]);
    let refused = train_in(&run_dir, limited(needs / 2), DeviceChoice::Cpu).unwrap_err();
    assert_eq!(refused.exit_status(), 2);
    let text = refused.to_string();
    assert!(
        text.contains("memory.limit_bytes") && text.contains(&telemetry::units::grouped(needs)),
        "{text}"
    );
    assert!(!run_dir.exists());
    train_in(&run_dir, limited(needs), DeviceChoice::Cpu).unwrap();
}

/// A configuration whose activations are far larger than its parameters.
const DEEP: [&str; 8] = [
    "model.layers=6",
    "model.width=64",
    "model.context=128",
    "train.micro_batch_size=16",
    "train.global_batch_size=16",
    "parallel.lanes=1",
    "train.steps=1",
    "train.validation_micro_batches=1",
];

/// Returns the peak of reserved bytes of a configuration; `None` if it does not fit.
fn reserved(overrides: &[&str]) -> Option<u64> {
    let setup = prepare(config(GPT, &[&DEEP, overrides].concat()), Placement::Cpu).unwrap();
    plan(&setup, 0).ok().map(|plan| plan.statistics.peak_reserved())
}

#[test]
fn auto_recomputation_is_the_least_that_fits() {
    let all = |segments: usize| reserved(&[&format!("memory.recompute={segments}")]).unwrap();
    let (none, least) = (reserved(&[]).unwrap(), (1..=6).map(all).min().unwrap());
    assert!(3 * least < 2 * none, "{least} of {none}");
    let choose = |limit: u64| {
        let directory = tempfile::tempdir().unwrap();
        let run_dir = directory.path().join("run");
        let limit = format!("memory.limit_bytes={limit}");
        let overrides = [&DEEP[..], &["memory.recompute=auto", &limit]].concat();
        let report = train_in(&run_dir, config(GPT, &overrides), DeviceChoice::Cpu)?;
        let chosen = std::fs::read_to_string(run_dir.join("config.toml")).unwrap();
        let chosen: toml::Table = chosen.parse().unwrap();
        let memory = chosen["memory"].clone();
        let layers = memory["recompute_layers"].as_integer().unwrap();
        Ok::<_, run::RunError>((report, memory["recompute"].to_string(), layers))
    };
    let (plain, chosen, _) = choose(none).unwrap();
    assert_eq!(chosen, "\"none\"");
    for limit in [none - 1, (none + least) / 2, least] {
        let (report, chosen, layers) = choose(limit).unwrap();
        let layers = if layers == 0 { 6 } else { layers };
        assert_ne!(chosen, "\"none\"");
        assert!(report.ranks[0].get(Statistic::PeakReservedBytes) <= limit);
        assert_eq!(report.summary.weights_sha256, plain.summary.weights_sha256);
        // With fewer bytes nothing fits, with any segments.
        let limit = format!("memory.limit_bytes={limit}");
        for fewer in 1..layers {
            for segments in 1..=fewer {
                let (recompute, layers) =
                    (format!("memory.recompute={segments}"), format!("memory.recompute_layers={fewer}"));
                assert_eq!(reserved(&[&recompute, &layers, &limit]), None, "{chosen} of {layers} at {limit}");
            }
        }
    }
    let refused = choose(least / 2).unwrap_err();
    assert_eq!(refused.exit_status(), 2);
    let text = refused.to_string();
    assert!(text.contains(&format!("memory.limit_bytes = {} is too small", least / 2)), "{text}");
    assert!(
        text.contains("memory.recompute = ") && text.ends_with(&format!("needs {least} bytes")),
        "{text}"
    );
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
