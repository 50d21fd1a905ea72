//! Tests of model families with their options.

use worker::DeviceChoice;

use super::{
    BLOCK, GPIPE, INTERLEAVED, ONCE, PAIRS, Row, SHARDED, ZERO_2, ZERO_3, ZERO_BUBBLE, check, run_on,
};
use crate::common::devices::gpu;
use crate::common::runs::{BOTTLENECKS, GPT, LLAMA, RESNET};

/// Llama on all kinds of grids, with and without tied embeddings and recomputation.
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
    // Options of Llama on one grid each.
    (LLAMA, &[], ONCE),
    (LLAMA, &["model.qk_norm=true", "parallel.data=2", SHARDED], ONCE),
    (LLAMA, &["model.tied=true", "memory.recompute=block", "parallel.data=4"], ONCE),
    (LLAMA, &["model.tied=true", "parallel.pipeline=2", "parallel.data=2"], ONCE),
    (LLAMA, &["model.qkv_bias=true", "parallel.pipeline=4", "parallel.schedule=zero-bubble"], ONCE),
];

/// Residual networks, whose running statistics affect the validation loss, divided between blocks of
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
    // Evaluation folds norms into convolutions, so activations between stages have another dtype.
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
    // Workspaces, odd numbers of bytes, and stages between different shapes.
    (RESNET, &[], ONCE),
    (RESNET, &["parallel.data=2", SHARDED], ONCE),
    (RESNET, &["memory.recompute=block", "parallel.data=4"], ONCE),
    (RESNET, &["model.stem=small", "model.image_size=16", "parallel.data=2"], ONCE),
    // Pixels in an odd number of bytes.
    (
        RESNET,
        &[
            "model.image_size=33",
            "model.channels=1",
            "train.micro_batch_size=3",
            "train.global_batch_size=24",
        ],
        ONCE,
    ),
    (RESNET, &["parallel.pipeline=4", "parallel.schedule=zero-bubble"], ONCE),
    (BOTTLENECKS, &["parallel.pipeline=2", "parallel.data=2", "memory.recompute=2"], ONCE),
];

const FP8: &str = "precision.matmul=fp8";
const ROWWISE: &str = "precision.fp8_recipe=rowwise";

/// FP8 matmuls; scales are computed per micro-batch, so they do not depend on the grid.
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
    // Copies of weights and activations in FP8.
    (GPT, &["precision.matmul=fp8"], ONCE),
    (GPT, &["precision.matmul=fp8", "parallel.data=2", SHARDED], ONCE),
    (GPT, &["precision.matmul=fp8", "memory.recompute=block", "precision.fp8_recipe=rowwise"], ONCE),
    (LLAMA, &["precision.matmul=fp8", "parallel.pipeline=2", "parallel.data=2"], ONCE),
    (LLAMA, &["precision.matmul=fp8", "parallel.pipeline=2", "parallel.schedule=zero-bubble"], ONCE),
    (LLAMA, &["precision.matmul=fp8", "memory.recompute=2", "precision.fp8_recipe=rowwise"], ONCE),
    (LLAMA, &["precision.matmul=fp8", "precision.fp8_layers=['*.mlp.*', 'lm_head']"], ONCE),
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
    // In zero-bubble schedules, each half of backward computes the scores once.
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
    (
        GPT,
        &["model.layers=4", "train.neftune_alpha=5", "lora.rank=2", "train.steps=3"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", BLOCK],
            &["parallel.data=4", SHARDED],
            &["parallel.pipeline=2", ZERO_BUBBLE],
            &["parallel.pipeline=2", "parallel.data=2", INTERLEAVED],
        ],
    ),
    (
        LLAMA,
        &["train.neftune_alpha=5", "model.embedding_scale=2", "model.dropout=0.1", "train.steps=3"],
        &[
            &["parallel.data=1"],
            &["parallel.data=3", ZERO_3],
            &["parallel.pipeline=2", "parallel.data=2", GPIPE],
        ],
    ),
    // Dropout, other heads, losses in pieces of the vocabulary.
    (GPT, &["model.dropout=0.2", "parallel.data=2", SHARDED], ONCE),
    (GPT, &["model.dropout=0.2", "parallel.pipeline=2", "parallel.data=2", "memory.recompute=block"], ONCE),
    (
        GPT,
        &["model.tied=false", "model.biases=false", "model.positions=sinusoidal", "parallel.pipeline=2"],
        ONCE,
    ),
    (LLAMA, &["model.dropout=0.2", "model.key_value_heads=1", "memory.recompute=2"], ONCE),
    (LLAMA, &["model.dropout=0.2", "parallel.pipeline=2", "parallel.schedule=zero-bubble"], ONCE),
    (LLAMA, &["model.loss_pieces=3", "model.logit_soft_cap=4.0", "parallel.data=2"], ONCE),
    (LLAMA, &["model.loss_pieces=3", "parallel.pipeline=2", "parallel.schedule=zero-bubble"], ONCE),
    (GPT, &["model.loss_pieces=2", "model.vocabulary=1003", "parallel.data=4", SHARDED], ONCE),
    (GPT, &["model.logit_soft_cap=4.0", "parallel.pipeline=2", "parallel.data=2"], ONCE),
];

#[test]
fn llamas_have_equal_bits() {
    check(LLAMAS);
}

#[test]
fn fp8_matmuls_have_equal_bits() {
    check(FP8_MATMULS);
}

#[test]
fn options_of_families_have_equal_bits() {
    check(OPTIONS);
}

/// Runs on a GPU: repeated, and recomputed, in both half-precision dtypes.
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
            run_on(DeviceChoice::Cuda, text, &sets)
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
    check(RESNETS);
}
