//! Grids of ranks, sharding, gradients in bf16, and lanes.

use memory::Category;
use plan::{DeviceRanks, PlanDevice, plan, prepare};
use telemetry::{RankStatistics, Statistic};
use worker::{DeviceChoice, Placement};

use super::{SHARDED, compare, compare_all, run};
use crate::common::runs::{GPT, LLAMA, MLP, RESNET, config};

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

/// Data-parallel ranks, sharded and whole.
#[test]
fn data_parallel_plans_equal_runs() {
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
        (GPT, &["parallel.data=2", "optim.kind=lion", SHARDED]),
        // Ranks own different shards of the optimizer state.
        (GPT, &["parallel.data=2", SHARDED]),
        (GPT, &["parallel.data=4", SHARDED, "parallel.bucket_bytes=512"]),
        (GPT, &["parallel.data=4", SHARDED, "model.width=256", "model.context=128", "train.steps=2"]),
        (MLP, &["parallel.data=2", SHARDED]),
        (MLP, &["parallel.data=4", SHARDED, "optim.kind=adamw", "checkpoint.every=2"]),
        (GPT, &["parallel.data=4", "parallel.reduction=nccl"]),
        (GPT, &["parallel.data=2", SHARDED, "parallel.reduction=nccl"]),
    ];
    compare_all(table);
}

/// Half precision: copies of the weights, gradients in both types, pipelines, recomputation.
#[test]
fn plans_in_half_precision_equal_runs() {
    for compute in ["bf16", "f16"] {
        let (compute, gradients) =
            (format!("precision.compute={compute}"), format!("precision.gradients={compute}"));
        let table: [&[&str]; 5] = [
            &["parallel.data=2"],
            &["parallel.data=4", SHARDED, "parallel.bucket_bytes=512", &gradients],
            &["parallel.pipeline=2", "parallel.schedule=zero-bubble", "optim.state=bf16"],
            &["parallel.pipeline=2", "parallel.data=2", SHARDED, "memory.recompute=block"],
            &["optim.kind=sgd", "checkpoint.every=2", "model.loss_pieces=2", &gradients],
        ];
        for more in table {
            compare(GPT, &[&["model.width=64", "train.steps=2", &compute][..], more].concat());
        }
        compare(MLP, &["parallel.data=2", &compute, &gradients]);
    }
}

/// f32 weights beside half-precision operators: casts of weights and activations.
#[test]
fn plans_of_autocast_equal_runs() {
    let table: [(&str, &[&str]); 5] = [
        (GPT, &["model.width=64", "parallel.data=2", SHARDED]),
        (GPT, &["model.width=64", "parallel.pipeline=2", "memory.recompute=block"]),
        (GPT, &["model.width=64", "model.loss_pieces=2", "lora.rank=2", "checkpoint.every=2"]),
        (LLAMA, &["model.width=128", "parallel.pipeline=2", "parallel.schedule=zero-bubble"]),
        (RESNET, &["parallel.data=2", "train.steps=2"]),
    ];
    for (number, (text, more)) in table.into_iter().enumerate() {
        let compute = ["precision.compute=bf16", "precision.compute=f16"][number % 2];
        compare(text, &[&["train.steps=2", "precision.weights=f32", compute][..], more].concat());
    }
}

/// Optimizer state in bf16 and in 8 bits.
#[test]
fn plans_of_narrow_state_equal_runs() {
    for state in ["optim.state=bf16", "optim.state=8bit"] {
        compare(GPT, &["train.steps=2", "parallel.data=2", "checkpoint.every=1", state]);
        compare(
            GPT,
            &["train.steps=2", "model.width=64", "parallel.data=4", SHARDED, "precision.compute=bf16", state],
        );
        compare(MLP, &["parallel.pipeline=2", state]);
    }
}

/// Several lanes on a rank, and several micro-batches in a lane.
#[test]
fn plans_of_many_lanes_equal_runs() {
    let table: &[(&str, &[&str])] = &[
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
    compare_all(table);
}

/// Runs of lanes that are uneven, or several subtrees: ranks with more sets, parts and micro-batches than
/// others.
#[test]
fn plans_of_uneven_runs_equal_runs() {
    const EIGHT: [&str; 3] = ["parallel.lanes=8", "train.global_batch_size=16", "train.steps=2"];
    let table: &[(&str, &[&str], &[&str])] = &[
        (GPT, &EIGHT, &["parallel.data=3"]),
        (GPT, &EIGHT, &["parallel.data=5", SHARDED, "parallel.bucket_bytes=512"]),
        (GPT, &EIGHT, &["parallel.data=7"]),
        (GPT, &EIGHT, &["parallel.data=3", "parallel.pipeline=2", SHARDED]),
        (GPT, &EIGHT, &["parallel.data=3", "parallel.pipeline=2", "parallel.schedule=zero-bubble"]),
        (GPT, &EIGHT, &["parallel.data=3", "parallel.reduction=nccl"]),
        // Lanes of two micro-batches.
        (GPT, &["parallel.lanes=6", "train.global_batch_size=24"], &["parallel.data=1", "train.steps=2"]),
        (GPT, &["parallel.lanes=6", "train.global_batch_size=24"], &["parallel.data=4", "train.steps=2"]),
        (MLP, &["parallel.lanes=35", "train.global_batch_size=350"], &["parallel.data=1"]),
        (MLP, &["parallel.lanes=35", "train.global_batch_size=350"], &["parallel.data=5", SHARDED]),
        (
            MLP,
            &["parallel.lanes=12", "train.global_batch_size=120"],
            &["parallel.data=4", "optim.kind=adamw"],
        ),
        (RESNET, &[], &["parallel.data=3", SHARDED, "train.steps=2"]),
    ];
    for (text, common, grid) in table {
        compare(text, &[*common, *grid].concat());
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
        let setup = prepare(
            config,
            Placement::Meta(PlanDevice::shipped().unwrap().description(DeviceRanks::CONNECTED)),
        )
        .unwrap();
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
