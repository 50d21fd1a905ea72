//! Families of models with their options.

use worker::DeviceChoice;

use super::{
    BLOCK, GPIPE, INTERLEAVED, PAIRS, Row, SHARDED, ZERO_2, ZERO_3, ZERO_BUBBLE, assert_equal_bits,
    assert_equal_bits_on_devices, history_on,
};
use crate::common::devices::gpu;
use crate::common::runs::{
    ADAPTED_LATENTS, BOTTLENECKS, GPT, LATENTS, LLAMA, RESNET, WINDOWS_AND_CAPS, WINDOWS_AND_FACTORS,
};

/// Llama on every kind of grid, tied or not, recomputed or not.
const LLAMAS: &[Row] = &[
    (
        LLAMA,
        &["model.qk_norm=true"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", BLOCK],
            &["parallel.data=4", SHARDED],
            &["parallel.pipeline=2", ZERO_BUBBLE],
            &["parallel.pipeline=2", "parallel.data=2", INTERLEAVED, SHARDED],
            &["parallel.pipeline=2", "parallel.data=2", INTERLEAVED, ZERO_3],
            &["memory.recompute=2", "parallel.pipeline=2", GPIPE],
        ],
    ),
    (
        LLAMA,
        &["model.tied=true", "model.qkv_bias=true", "parallel.lanes=2"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", SHARDED],
            &["parallel.data=2", ZERO_3, BLOCK],
            &["parallel.pipeline=4"],
            &["parallel.pipeline=2", "parallel.data=2", BLOCK],
        ],
    ),
];

/// Llama with windows and other options of related models.
const RELATIVES: &[Row] = &[
    (
        LLAMA,
        WINDOWS_AND_CAPS,
        &[
            &["parallel.data=1"],
            &["parallel.data=2", BLOCK],
            &["parallel.data=3", ZERO_2],
            &["parallel.data=4", SHARDED],
            &["parallel.pipeline=2", ZERO_BUBBLE],
            &["parallel.pipeline=2", "parallel.data=2", INTERLEAVED, ZERO_3],
            &["memory.recompute=2", "parallel.pipeline=2", GPIPE],
        ],
    ),
    (
        LLAMA,
        WINDOWS_AND_FACTORS,
        &[
            &["parallel.data=1"],
            &["parallel.data=2", SHARDED],
            &["parallel.data=4", ZERO_3, PAIRS, BLOCK],
            &["parallel.pipeline=4"],
            &["parallel.pipeline=2", "parallel.data=2", BLOCK],
            &["parallel.pipeline=2", ZERO_BUBBLE],
        ],
    ),
    (
        LLAMA,
        &[
            "model.window=9",
            "model.norm_position=both",
            "model.mlp_bias=true",
            "lora.rank=2",
            "train.steps=3",
        ],
        &[
            &["parallel.data=1"],
            &["parallel.data=4", ZERO_3, BLOCK],
            &["parallel.pipeline=2", "parallel.data=2", INTERLEAVED],
        ],
    ),
    (
        LLAMA,
        &[
            "model.window=9",
            "model.attention_soft_cap=2.0",
            "model.dropout=0.1",
            "precision.compute=bf16",
            "model.head_width=32",
            "precision.weights=f32",
            "train.steps=3",
        ],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", BLOCK],
            &["parallel.pipeline=2", "parallel.data=2", SHARDED],
        ],
    ),
    (
        LLAMA,
        LATENTS,
        &[
            &["parallel.data=1"],
            &["parallel.data=2", BLOCK],
            &["parallel.data=4", SHARDED],
            &["parallel.pipeline=2", ZERO_BUBBLE],
            &["parallel.pipeline=2", "parallel.data=2", INTERLEAVED, ZERO_3],
        ],
    ),
    (LLAMA, ADAPTED_LATENTS, &[&["parallel.data=1"], &["parallel.data=2", ZERO_3, BLOCK]]),
];

/// Residual networks, whose running statistics decide the loss of a validation, cut between blocks of
/// different shapes.
const RESNETS: &[Row] = &[
    (
        RESNET,
        &[],
        &[
            &["parallel.data=1"],
            &["parallel.data=2"],
            &["parallel.data=4", SHARDED],
            &[BLOCK],
            &["parallel.pipeline=2"],
            &["parallel.pipeline=4", ZERO_BUBBLE],
            &["parallel.pipeline=2", "parallel.data=2", GPIPE, SHARDED],
            &["parallel.pipeline=2", "parallel.data=2", INTERLEAVED, BLOCK],
            &["memory.recompute=2", "parallel.data=2"],
            &["parallel.data=3", ZERO_2],
            &["parallel.data=4", ZERO_3, PAIRS],
            &["parallel.pipeline=2", "parallel.data=2", GPIPE, ZERO_3],
        ],
    ),
    (
        BOTTLENECKS,
        &["optim.clip_norm=0.1"],
        &[
            &["parallel.data=1"],
            &["parallel.data=4"],
            &["parallel.pipeline=4"],
            &["parallel.pipeline=2", "parallel.data=2", BLOCK, SHARDED],
        ],
    ),
    (
        RESNET,
        &["model.stem=small", "model.image_size=16", "precision.compute=bf16"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", SHARDED],
            &["parallel.data=3", ZERO_3, BLOCK],
            &["parallel.pipeline=2", BLOCK],
        ],
    ),
    // Evaluation folds norms into convolutions, so that its values cross the cuts in another type.
    (
        RESNET,
        &["model.stem=small", "model.image_size=16", "precision.compute=bf16", "precision.weights=f32"],
        &[&["parallel.data=1"], &["parallel.pipeline=2", SHARDED], &["parallel.pipeline=4", BLOCK]],
    ),
    (
        RESNET,
        &["train.freeze=['conv1.*', 'bn1.*', 'layer1.*', '*.bn2.bias']"],
        &[&["parallel.data=1"], &["parallel.data=2", SHARDED], &["parallel.pipeline=2", BLOCK]],
    ),
];

const FP8: &str = "precision.matmul=fp8";
const ROWWISE: &str = "precision.fp8_recipe=rowwise";

/// FP8 matmuls: factors are of a micro-batch, so they do not depend on the grid.
const FP8_MATMULS: &[Row] = &[
    (
        GPT,
        &["model.layers=4", FP8, "precision.fp8_gradients=e5m2"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", BLOCK],
            &["parallel.data=4", SHARDED],
            &["parallel.pipeline=2", ZERO_BUBBLE],
            &["parallel.pipeline=2", "parallel.data=2", INTERLEAVED, SHARDED],
            &["parallel.pipeline=2", "parallel.data=2", INTERLEAVED, ZERO_3],
            &["memory.recompute=2", "parallel.pipeline=2", GPIPE],
        ],
    ),
    (
        LLAMA,
        &[FP8, ROWWISE, "model.qkv_bias=true", "train.steps=3"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", BLOCK],
            &["parallel.data=4", SHARDED],
            &["parallel.data=3", ZERO_2],
            &["parallel.data=4", ZERO_3, PAIRS, BLOCK],
            &["parallel.pipeline=2", ZERO_BUBBLE, BLOCK],
        ],
    ),
    (
        LLAMA,
        &[FP8, "precision.fp8_layers=['*.mlp.*']", "model.dropout=0.1", "train.steps=3"],
        &[&["parallel.data=1"], &["parallel.data=2", BLOCK], &["parallel.pipeline=4", SHARDED]],
    ),
];

/// Families with dropout, other heads, and losses in pieces of the vocabulary.
const OPTIONS: &[Row] = &[
    (
        GPT,
        &["model.layers=4", "model.dropout=0.2", "train.steps=3"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", BLOCK],
            &["parallel.data=4", SHARDED],
            &["parallel.pipeline=2", ZERO_BUBBLE],
            &["parallel.pipeline=2", "parallel.data=2", INTERLEAVED, SHARDED],
        ],
    ),
    (
        GPT,
        &["model.tied=false", "model.biases=false", "model.positions=sinusoidal", "model.dropout=0.1"],
        &[
            &["parallel.data=1"],
            &["parallel.data=4", BLOCK],
            &["parallel.pipeline=2"],
            &["parallel.pipeline=2", "parallel.data=2", SHARDED],
        ],
    ),
    (
        LLAMA,
        &["model.dropout=0.2", "model.key_value_heads=1", "train.steps=3"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", BLOCK],
            &["parallel.data=4", SHARDED],
            &["parallel.data=3", ZERO_3],
            &["parallel.pipeline=2", ZERO_BUBBLE],
            &["parallel.pipeline=2", "parallel.data=2", GPIPE, BLOCK],
        ],
    ),
    // In zero-bubble schedules each half of backward computes the scores once.
    (
        LLAMA,
        &["model.loss_pieces=3", "model.logit_soft_cap=4.0", "train.validation_micro_batches=2"],
        &[
            &["parallel.data=1"],
            &["parallel.data=4", SHARDED],
            &["parallel.pipeline=2", ZERO_BUBBLE],
            &["parallel.pipeline=2", "parallel.data=3", ZERO_3, ZERO_BUBBLE],
            &["parallel.pipeline=2", "parallel.data=2", BLOCK],
        ],
    ),
    (
        GPT,
        &["model.loss_pieces=2", "model.dropout=0.1"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", BLOCK],
            &["parallel.pipeline=2", ZERO_BUBBLE],
            &["parallel.pipeline=2", "parallel.data=2", SHARDED],
        ],
    ),
    (
        GPT,
        &["model.tied=false", "model.loss_pieces=2", "train.freeze=['lm_head.*']", "train.steps=3"],
        &[&["parallel.data=1"], &["parallel.data=2", BLOCK], &["parallel.pipeline=2", ZERO_BUBBLE]],
    ),
    (
        GPT,
        &["model.logit_soft_cap=4.0", "train.steps=3"],
        &[&["parallel.data=1"], &["parallel.data=2"], &["parallel.pipeline=2", ZERO_BUBBLE]],
    ),
];

#[test]
fn llamas_have_equal_bits() {
    assert_equal_bits(LLAMAS);
}

#[test]
fn relatives_of_llama_have_equal_bits() {
    assert_equal_bits_on_devices(RELATIVES);
}

#[test]
fn fp8_matmuls_have_equal_bits() {
    assert_equal_bits(FP8_MATMULS);
}

#[test]
fn options_of_families_have_equal_bits() {
    assert_equal_bits(OPTIONS);
}

/// On a GPU, twice alike and recomputed, in both types.
#[test]
fn options_of_families_have_equal_bits_on_a_gpu() {
    if !gpu() {
        return;
    }
    let table: &[(&str, &[&str])] = &[
        (GPT, &["model.width=128", "model.dropout=0.2"]),
        (GPT, &["model.width=128", "model.tied=false", "model.biases=false", "model.positions=sinusoidal"]),
        (GPT, &["model.width=128", "model.loss_pieces=2", "model.dropout=0.1"]),
        (LLAMA, &["model.width=256", "model.key_value_heads=1", "model.dropout=0.2"]),
        (
            LLAMA,
            &["model.width=256", "model.qk_norm=true", "model.loss_pieces=3", "model.logit_soft_cap=4.0"],
        ),
        (LLAMA, &["model.width=256", "model.tied=true", "model.loss_pieces=2"]),
        (GPT, &["model.width=128", FP8]),
        (LLAMA, &["model.width=256", FP8, ROWWISE]),
        (GPT, &["model.width=128", "precision.weights=f32", "model.dropout=0.1"]),
        (LLAMA, &["model.width=256", "precision.weights=f32", "model.qk_norm=true", "model.loss_pieces=2"]),
        (GPT, &["model.width=128", "optim.state=8bit"]),
    ];
    let has_type = |options: &[&str], compute: &str| compute == "bf16" || !options.contains(&FP8);
    let rows = table.iter().flat_map(|row| ["f32", "bf16"].map(|compute| (row, compute)));
    for ((text, options), compute) in rows.filter(|((_, options), compute)| has_type(options, compute)) {
        let compute = format!("precision.compute={compute}");
        let run = |more: &[&str]| {
            let sets = [options, &["train.steps=3", &compute][..], more].concat();
            history_on(DeviceChoice::Cuda, text, &sets)
        };
        let first = run(&[]);
        for more in [&[][..], &[BLOCK], &["memory.recompute=2"]] {
            let other = run(more);
            assert_eq!(first.losses, other.losses, "{options:?} {compute} {more:?}");
            assert_eq!(first.weights, other.weights, "{options:?} {compute} {more:?}");
        }
    }
}

#[test]
fn residual_networks_have_equal_bits() {
    assert_equal_bits(RESNETS);
}
