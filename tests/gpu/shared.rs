//! Tests of ranks that share the first GPU, even if there are more: they have the bits of one rank and the
//! planned bytes.

use std::path::Path;
use std::sync::{Arc, PoisonError};

use inference::SampleOptions;
use run::{RunOptions, Startup, TrainReport};
use serde_json::Value;
use worker::DeviceChoice;

use super::{GPUS, MIB, complete, on_the_first_gpu};
use crate::common::devices::gpu;
use crate::common::jobs::workplace;
use crate::common::runs::{
    BIASED_EXPERTS, CHAT, CORRECTED_EXPERTS, GPT, LATENTS, LLAMA, MLP, RESNET, config,
};

const SHARDED: &str = "parallel.zero_stage=1";
const ZERO_2: &str = "parallel.zero_stage=2";
const ZERO_3: &str = "parallel.zero_stage=3";
const PAIRS: &str = "parallel.shard=2";
const BF16: &str = "precision.compute=bf16";

/// Returns the settings of a grid whose ranks share a GPU.
fn shared(data: usize, pipeline: usize) -> [String; 3] {
    [
        format!("parallel.data={data}"),
        format!("parallel.pipeline={pipeline}"),
        format!("parallel.ranks_per_device={}", data * pipeline),
    ]
}

fn train(run_dir: &Path, text: &str, sets: &[&str], resume: bool) -> TrainReport {
    let _beside_others = GPUS.read().unwrap_or_else(PoisonError::into_inner);
    let device = DeviceChoice::Cuda;
    let run_dir = Some(run_dir.to_owned());
    let options = RunOptions { device, run_dir, resume, quiet: true, ..RunOptions::default() };
    let report = run::train(config(text, sets), options);
    let report = report.unwrap_or_else(|error| panic!("{sets:?}: {error}"));
    assert!(report.divergences.is_empty() && report.outlived.is_empty(), "{sets:?}: {report}");
    report
}

/// Returns losses, weights' hash and validation loss, which must be bit-identical.
fn bits(report: &TrainReport) -> (Vec<u32>, String, Option<u64>) {
    let losses = report.summary.losses.iter().map(|loss| loss.to_bits()).collect();
    (losses, report.summary.weights_sha256.clone(), report.validation_loss.map(f64::to_bits))
}

/// A grid: number of data-parallel ranks, number of pipeline ranks, and further settings.
type Grid = (usize, usize, &'static [&'static str]);

/// Settings of experts whose sizes Hopper's kernels support.
const HALF_EXPERTS: [&str; 4] = ["model.width=128", "model.experts=4", "model.expert_width=64", BF16];

/// Models with settings, and grids that must not change a bit.
const TABLE: &[(&str, &[&str], &[Grid])] = &[
    (
        GPT,
        &["model.layers=4", "optim.clip_norm=0.1", "model.dropout=0.1"],
        &[
            (2, 1, &[]),
            (4, 1, &[SHARDED]),
            (4, 1, &["parallel.reduction=nccl"]),
            (1, 2, &["parallel.schedule=interleaved"]),
            (1, 4, &["parallel.schedule=gpipe", "memory.recompute=block"]),
            (2, 2, &["parallel.schedule=zero-bubble", SHARDED, "parallel.bucket_bytes=512"]),
            (2, 1, &[ZERO_2]),
            (4, 1, &[ZERO_3]),
            (4, 1, &[ZERO_3, "parallel.prefetch=0", "memory.recompute=block"]),
            (4, 1, &[ZERO_3, PAIRS]),
            (4, 1, &[ZERO_3, "parallel.reduction=nccl"]),
            (2, 2, &["parallel.schedule=zero-bubble", ZERO_3]),
        ],
    ),
    // Ranks with uneven numbers of lanes, or with lanes in several subtrees.
    (
        GPT,
        &["parallel.lanes=8", "train.global_batch_size=16", "model.dropout=0.1", "optim.clip_norm=0.1"],
        &[
            (3, 1, &[SHARDED]),
            (5, 1, &[SHARDED, "parallel.bucket_bytes=512"]),
            (7, 1, &[]),
            (3, 2, &["parallel.schedule=zero-bubble", SHARDED]),
            (3, 1, &[ZERO_2, "parallel.bucket_bytes=512"]),
            (7, 1, &[ZERO_3]),
            (6, 1, &[ZERO_3, "parallel.shard=3"]),
        ],
    ),
    (
        LLAMA,
        &[
            "parallel.lanes=12",
            "train.global_batch_size=24",
            "model.width=128",
            BF16,
            "precision.gradients=bf16",
        ],
        &[(3, 1, &[SHARDED]), (4, 1, &["memory.recompute=block"]), (3, 2, &[]), (6, 1, &[ZERO_3, PAIRS])],
    ),
    // Eight ranks on one GPU.
    (
        GPT,
        &["model.layers=4", "parallel.lanes=4", BF16, "model.width=128", "precision.gradients=bf16"],
        &[(4, 2, &[SHARDED]), (2, 4, &[]), (4, 2, &[ZERO_3])],
    ),
    (
        MLP,
        &["parallel.lanes=8"],
        &[(8, 1, &[SHARDED]), (8, 1, &["parallel.overlap=off"]), (2, 2, &["memory.preallocate=true"])],
    ),
    (
        RESNET,
        &[],
        &[
            (3, 1, &[SHARDED]),
            (4, 1, &[SHARDED]),
            (3, 1, &[ZERO_2]),
            (4, 1, &[ZERO_3, PAIRS]),
            (1, 4, &["parallel.schedule=zero-bubble"]),
            (2, 2, &["parallel.schedule=gpipe"]),
        ],
    ),
    (
        LLAMA,
        &["model.width=256", BF16, "precision.matmul=fp8"],
        &[(4, 1, &[SHARDED]), (2, 2, &[]), (4, 1, &[ZERO_3])],
    ),
    (
        LLAMA,
        &["model.width=256", "precision.compute=f16"],
        &[(2, 1, &[SHARDED]), (1, 2, &[]), (3, 1, &[ZERO_2])],
    ),
    (
        LLAMA,
        &["lora.rank=4", "lora.alpha=8", "optim.clip_norm=0.1", "model.tied=true"],
        &[(4, 1, &[SHARDED]), (1, 4, &[]), (2, 2, &["parallel.schedule=interleaved"]), (3, 1, &[ZERO_3])],
    ),
    (LLAMA, CORRECTED_EXPERTS, &[(4, 1, &[ZERO_3]), (2, 2, &[]), (3, 1, &[SHARDED])]),
    (LLAMA, BIASED_EXPERTS, &[(2, 1, &[ZERO_2])]),
    (LLAMA, &HALF_EXPERTS, &[(4, 1, &[ZERO_3, PAIRS]), (2, 2, &["parallel.schedule=zero-bubble"])]),
    (
        LLAMA,
        &[HALF_EXPERTS[0], HALF_EXPERTS[1], HALF_EXPERTS[2], BF16, "precision.gradients=bf16"],
        &[(2, 2, &["memory.recompute=block"])],
    ),
    (
        LLAMA,
        &[HALF_EXPERTS[0], HALF_EXPERTS[1], HALF_EXPERTS[2], BF16, "precision.matmul=fp8"],
        &[(4, 1, &[ZERO_3]), (2, 2, &[])],
    ),
    (LLAMA, LATENTS, &[(2, 1, &[SHARDED]), (1, 2, &[])]),
    (CHAT, &[], &[(4, 1, &[]), (2, 2, &["parallel.schedule=zero-bubble"])]),
];

#[test]
fn ranks_that_share_a_gpu_have_the_bits_of_one() {
    if !gpu() {
        return;
    }
    for (text, common, grids) in TABLE {
        let directory = tempfile::tempdir().unwrap();
        let one =
            train(&directory.path().join("one"), text, &[common, &["parallel.data=1"][..]].concat(), false);
        assert!(one.summary.losses.iter().all(|loss| loss.is_finite()), "{common:?}");
        for (number, (data, pipeline, more)) in grids.iter().enumerate() {
            let grid = shared(*data, *pipeline);
            let grid: Vec<&str> = grid.iter().map(String::as_str).collect();
            let run_dir = directory.path().join(format!("grid-{number}"));
            let several = train(&run_dir, text, &[common, &grid[..], more].concat(), false);
            assert_eq!(several.ranks.len(), data * pipeline);
            assert_eq!(bits(&one), bits(&several), "{common:?} on {data} × {pipeline}, {more:?}");
        }
    }
}

#[test]
fn a_run_resumes_on_another_grid_of_ranks_that_share_a_gpu() {
    if !gpu() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let common = ["model.layers=4", "optim.clip_norm=0.1", "checkpoint.every=2", "checkpoint.minutes=0"];
    let on = |run: &str, steps: &str, grid: [String; 3], more: &[&str], resume: bool| {
        let grid: Vec<&str> = grid.iter().map(String::as_str).collect();
        let run_dir = directory.path().join(run);
        train(&run_dir, GPT, &[&common[..], &[steps], &grid, more].concat(), resume)
    };
    let alone =
        || ["parallel.data=1", "parallel.pipeline=1", "parallel.ranks_per_device=1"].map(str::to_owned);
    let whole = on("whole", "train.steps=6", alone(), &[], false);
    on("parts", "train.steps=6", shared(4, 1), &[SHARDED], false);
    let remove = |step: u64| {
        let checkpoint = format!("parts/checkpoints/step-{step:06}");
        std::fs::remove_dir_all(directory.path().join(checkpoint)).unwrap();
    };
    remove(6);
    let resumed = on("parts", "train.steps=6", shared(2, 2), &["parallel.schedule=zero-bubble"], true);
    assert_eq!(resumed.summary.more["resumed_after_step"], 4);
    assert_eq!(bits(&whole), bits(&resumed));
    remove(6);
    let resumed = on("parts", "train.steps=6", shared(4, 1), &[ZERO_3, PAIRS], true);
    assert_eq!(bits(&whole), bits(&resumed));
    remove(6);
    let resumed = on("parts", "train.steps=6", alone(), &[], true);
    assert_eq!(bits(&whole), bits(&resumed));
}

#[test]
fn a_text_is_the_same_from_ranks_that_share_a_gpu() {
    if !gpu() {
        return;
    }
    for text in [GPT, LLAMA] {
        let directory = tempfile::tempdir().unwrap();
        let model = directory.path().join("run");
        train(&model, text, &["parallel.data=1"], false);
        let options = SampleOptions {
            model,
            prompts: ["The load ", "é", "pub fn of(", "\n"].map(str::to_owned).to_vec(),
            tokens: 50,
            top_k: 40,
            seeds: vec![7],
            device: DeviceChoice::Cuda,
            ..SampleOptions::default()
        };
        let sample = |sets: Vec<String>| {
            let _beside_others = GPUS.read().unwrap_or_else(PoisonError::into_inner);
            let options = SampleOptions { sets, ..options.clone() };
            inference::sample(Startup::alone(), &options, Arc::new(|_| Ok(()))).unwrap().unwrap()
        };
        let one = sample(Vec::new());
        for (data, pipeline) in [(2, 1), (1, 2), (2, 2)] {
            let several = sample(shared(data, pipeline).to_vec());
            assert_eq!(one.texts, several.texts, "{data} × {pipeline}");
            assert_eq!(several.memory.len(), data * pipeline);
            for rank in &several.memory {
                assert_eq!(Some(rank.planned), rank.used, "{data} × {pipeline}");
            }
        }
    }
}

/// Checks that the planned bytes of each rank and of the device are exact, and that the driver's account adds
/// up.
#[test]
fn the_device_is_planned_exactly_and_every_byte_of_it_is_accounted_for() {
    if !gpu() {
        return;
    }
    let directory = workplace();
    let _alone = GPUS.write().unwrap_or_else(PoisonError::into_inner);
    let sets = ["parallel.data=2", "parallel.pipeline=2", "parallel.ranks_per_device=4"];
    let sets = sets.map(|set| format!("--set={set}"));
    let more: Vec<&str> = sets.iter().map(String::as_str).collect();
    let (message, summary) = complete(on_the_first_gpu(), directory.path(), "run", &more);
    assert!(message.contains("which 4 ranks share"), "{message}");
    assert!(message.contains("Every rank used what was planned, to the byte."), "{message}");
    assert!(message.contains("sum of 0-3"), "{message}");
    let output = on_the_first_gpu()
        .current_dir(directory.path())
        .args(["plan", "run.toml", "--json", "--device", "cuda"])
        .args(&more)
        .output()
        .unwrap();
    let planned: Value = serde_json::from_slice(&output.stdout).unwrap();
    let ranks = summary["ranks"].as_array().unwrap();
    let sum = |name: &str| ranks.iter().map(|rank| rank[name].as_u64().unwrap()).sum::<u64>();
    for name in ["allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "peak_reserved_bytes"] {
        assert_eq!(planned["shared_device"][name], sum(name), "{name}");
        for (rank, planned) in ranks.iter().zip(planned["ranks"].as_array().unwrap()) {
            assert_eq!(rank[name], planned[name], "{name}");
        }
    }
    assert_eq!(planned["fit"]["ranks_on_a_device"], 4);
    assert_eq!(planned["fit"]["needs_bytes"], sum("peak_reserved_bytes"));
    for rank in ranks {
        let value = |name: &str| rank[name].as_u64().unwrap();
        assert_eq!((value("device_contexts"), value("device_ranks")), (1, 4));
        assert_eq!(value("communicator_bytes"), 0);
        let parts = ["context_bytes", "module_bytes", "warm_up_bytes", "unaccounted_bytes"];
        let accounted = parts.map(value).iter().sum::<u64>() + sum("reserved_bytes");
        assert!(value("driver_used_bytes").abs_diff(accounted) <= 64 * MIB, "{message}");
        assert!(value("unaccounted_bytes") <= 64 * MIB, "{message}");
        assert_eq!(value("unaccounted_growth_bytes"), 0, "{message}");
    }
}
