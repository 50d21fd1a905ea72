//! Families of models with their options.

use device::Category;
use plan::{DeviceRanks, PlanDevice, plan, prepare};
use telemetry::{RankStatistics, Statistic};
use worker::Placement;

use super::{SHARDED, compare_all};
use crate::common::runs::{
    ADAPTED_LATENTS, BOTTLENECKS, GPT, LATENTS, LLAMA, RESNET, WINDOWS_AND_CAPS, WINDOWS_AND_FACTORS, config,
};

/// Llama, alone, sharded, recomputed and in pipelines.
#[test]
fn plans_of_llamas_equal_runs() {
    let table: &[(&str, &[&str])] = &[
        (LLAMA, &[]),
        (LLAMA, &["model.qk_norm=true", "parallel.data=2", SHARDED]),
        (LLAMA, &["model.tied=true", "memory.recompute=block", "parallel.data=4"]),
        (LLAMA, &["model.tied=true", "parallel.pipeline=2", "parallel.data=2"]),
        (LLAMA, &["model.qkv_bias=true", "parallel.pipeline=4", "parallel.schedule=zero-bubble"]),
    ];
    compare_all(table);
}

/// Windows and other options of Llama's relatives.
#[test]
fn plans_of_relatives_of_llama_equal_runs() {
    let grids: [&[&str]; 4] = [
        &[],
        &["parallel.data=2", SHARDED, "precision.compute=bf16", "model.head_width=32"],
        &["parallel.pipeline=2", "parallel.data=2", "memory.recompute=block"],
        &["parallel.pipeline=4", "parallel.schedule=zero-bubble"],
    ];
    for options in [WINDOWS_AND_CAPS, WINDOWS_AND_FACTORS] {
        for grid in grids {
            compare_all(&[(LLAMA, &[options, grid].concat())]);
        }
    }
    const FP8: &[&str] = &[
        "precision.matmul=fp8",
        "model.latent_width=16",
        "model.query_latent_width=16",
        "model.head_width=32",
        "model.rope_width=16",
        "model.value_width=16",
    ];
    for grid in [
        &[][..],
        &[
            "parallel.data=2",
            SHARDED,
            "precision.compute=bf16",
            "model.head_width=32",
            "model.value_width=16",
        ],
        &["parallel.pipeline=2", "parallel.schedule=zero-bubble", "memory.recompute=block"],
        &["parallel.tensor_lanes=4", "parallel.tensor=2", "parallel.data=2", "parallel.zero_stage=3"],
        &["parallel.tensor_lanes=2", "parallel.context_lanes=2"],
        &["parallel.context=2", "parallel.context_lanes=4"],
        FP8,
        &[FP8, &["parallel.tensor_lanes=2", "parallel.tensor=2"]].concat(),
    ] {
        compare_all(&[(LLAMA, &[LATENTS, grid].concat())]);
    }
    let lanes = [ADAPTED_LATENTS, &["parallel.tensor_lanes=4", "parallel.tensor=2"]].concat();
    compare_all(&[(LLAMA, ADAPTED_LATENTS), (LLAMA, &lanes)]);
    // Norms of heads of which a part rotates, or none.
    let part = ["model.qk_norm=true", "model.rope_width=4", "model.rope_layers=[1, 0]"];
    compare_all(&[(LLAMA, &part), (LLAMA, &[&part[..], &["parallel.pipeline=2"]].concat())]);
}

/// FP8 matmuls, whose weights have copies and whose activations are kept in FP8.
#[test]
fn plans_of_fp8_matmuls_equal_runs() {
    let table: &[(&str, &[&str])] = &[
        (GPT, &["precision.matmul=fp8"]),
        (GPT, &["precision.matmul=fp8", "parallel.data=2", SHARDED]),
        (GPT, &["precision.matmul=fp8", "memory.recompute=block", "precision.fp8_recipe=rowwise"]),
        (LLAMA, &["precision.matmul=fp8", "parallel.pipeline=2", "parallel.data=2"]),
        (LLAMA, &["precision.matmul=fp8", "parallel.pipeline=2", "parallel.schedule=zero-bubble"]),
        (LLAMA, &["precision.matmul=fp8", "memory.recompute=2", "precision.fp8_recipe=rowwise"]),
        (LLAMA, &["precision.matmul=fp8", "precision.fp8_layers=['*.mlp.*', 'lm_head']"]),
    ];
    compare_all(table);
}

/// On a GPU, planned on Meta: both copies of a weight take a byte an element each and share a factor, and the
/// activations that backward keeps shrink.
#[test]
fn fp8_copies_and_activations_are_planned_to_the_byte() {
    let of = |matmul: &str| {
        let matmul = format!("precision.matmul={matmul}");
        let batch = ["train.micro_batch_size=8", "parallel.lanes=1"];
        let sets = [&["model.width=128", "precision.compute=bf16", &matmul][..], &batch].concat();
        let description = PlanDevice::shipped().unwrap().description(DeviceRanks::ALONE);
        let setup = prepare(config(GPT, &sets), Placement::Meta(description)).unwrap();
        plan(&setup, 0).unwrap().counters
    };
    let (compute, fp8) = (of("compute"), of("fp8"));
    let of = |counters: &RankStatistics, category| counters.get(Statistic::LiveBytes(category));
    // Two blocks of 12 matrices of width², less the first layer's three.
    let (elements, layers) = ((2 * 12 - 3) * 128 * 128, 2 * 4 - 1);
    let copies = 2 * elements + 512 * layers;
    assert_eq!(of(&fp8, Category::Parameter), of(&compute, Category::Parameter) + copies);
    let peak = |counters: &RankStatistics| counters.get(Statistic::PeakBytes(Category::Activation));
    // Each layer but the first keeps its input, 8 · 32 rows of it, in one byte an element instead of two.
    let inputs = 2 * (128 + 128 + 128 + 4 * 128) - 128;
    assert!(peak(&fp8) + 8 * 32 * inputs <= peak(&compute), "{} of {}", peak(&fp8), peak(&compute));
}

/// Dropout, other heads, and losses in pieces of the vocabulary.
#[test]
fn plans_of_options_of_families_equal_runs() {
    let table: &[(&str, &[&str])] = &[
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
    ];
    compare_all(table);
}

/// Residual networks: workspaces of convolutions, running statistics, cuts between blocks of different
/// shapes.
#[test]
fn plans_of_residual_networks_equal_runs() {
    let table: &[(&str, &[&str])] = &[
        (RESNET, &[]),
        (RESNET, &["parallel.data=2", SHARDED]),
        (RESNET, &["memory.recompute=block", "parallel.data=4"]),
        (RESNET, &["model.stem=small", "model.image_size=16", "parallel.data=2"]),
        // Pixels in an odd number of bytes.
        (
            RESNET,
            &[
                "model.image_size=33",
                "model.channels=1",
                "train.micro_batch_size=3",
                "train.global_batch_size=24",
            ],
        ),
        (RESNET, &["parallel.pipeline=4", "parallel.schedule=zero-bubble"]),
        (BOTTLENECKS, &["parallel.pipeline=2", "parallel.data=2", "memory.recompute=2"]),
    ];
    compare_all(table);
}
