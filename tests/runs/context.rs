//! Tests of context parallelism: ranks that share sequences, and the pieces over which sums are defined.

use super::{
    BLOCK, INTERLEAVED, LANES, ONCE, PAIR, PAIRS, PIPELINE, Row, SHARDED, THREE, ZERO_2, ZERO_3, ZERO_BUBBLE,
    check,
};
use super::{check_on_devices, run};
use crate::common::runs::{CHAT, GPT, LATENTS, LLAMA, WINDOWS_AND_CAPS, WINDOWS_AND_FACTORS};

const PIECES: &str = "parallel.context_lanes=4";
const TWO: &str = "parallel.context=2";
const TENSOR: &str = "parallel.tensor=2";
const TENSOR_4: &str = "parallel.tensor=4";

/// Grids for each family: data × context × tensor × pipeline with all ZeRO stages, schedules and
/// recomputation.
const GRIDS: &[&[&str]] = &[
    &[],
    &[TWO],
    &[BLOCK],
    &[TWO, BLOCK],
    &[TENSOR],
    &[TWO, TENSOR],
    &[TWO, TENSOR_4],
    &[TWO, TENSOR, "memory.recompute=2"],
    &[PAIR, TWO],
    &[PAIR, TWO, TENSOR],
    &[THREE, TWO, SHARDED],
    &["parallel.data=4", TWO],
    &[PIPELINE],
    &[PIPELINE, TWO],
    &[PIPELINE, TWO, TENSOR],
    &[PIPELINE, TWO, ZERO_BUBBLE],
    &[PIPELINE, TWO, TENSOR, ZERO_BUBBLE, BLOCK],
    &[PIPELINE, TWO, "parallel.schedule=gpipe", BLOCK],
    &[PIPELINE, PAIR, TWO, INTERLEAVED],
    &[PIPELINE, PAIR, TWO, SHARDED],
    &[PAIR, SHARDED],
    &[TWO, SHARDED],
    &[TWO, TENSOR, ZERO_2],
    &[TWO, ZERO_3],
    &[PIPELINE, TWO, ZERO_3, "parallel.schedule=gpipe"],
    &[PAIR, TWO, SHARDED],
    &[PAIR, TWO, TENSOR, SHARDED, "parallel.bucket_bytes=512"],
    &[PAIR, TWO, ZERO_2],
    &[PAIR, TWO, TENSOR, ZERO_2, BLOCK],
    &[THREE, TWO, ZERO_2],
    &[PAIR, ZERO_3],
    &[PAIR, TWO, ZERO_3],
    &[PAIR, TWO, TENSOR, ZERO_3, BLOCK],
    &[THREE, TWO, ZERO_3, "parallel.prefetch=0"],
    &["parallel.data=4", TWO, ZERO_3, PAIRS],
    &[PIPELINE, PAIR, TWO, ZERO_3],
    &[PIPELINE, PAIR, TWO, TENSOR, ZERO_3, ZERO_BUBBLE],
];

const FAMILIES: &[Row] = &[
    (
        GPT,
        &[
            PIECES,
            LANES,
            "model.layers=4",
            "model.heads=4",
            "train.steps=2",
            "model.dropout=0.1",
            "train.neftune_alpha=5",
            "optim.clip_norm=0.1",
        ],
        GRIDS,
    ),
    (LLAMA, &[PIECES, LANES, "model.key_value_heads=4", "model.qk_norm=true", "train.steps=2"], GRIDS),
];

#[test]
fn every_grid_with_four_pieces_has_one_hash() {
    check_on_devices(FAMILIES);
}

/// Numbers of pieces, precisions, low-precision state, frozen weights, adapters, positions, windows, soft
/// caps, ignored targets and documents in sequences.
const FEATURES: &[Row] = &[
    (GPT, &["parallel.context_lanes=2", "model.biases=false", "model.tied=false"], &[&[], &[PIPELINE]]),
    (
        GPT,
        &["parallel.context_lanes=8", "model.positions=sinusoidal", "model.loss_pieces=3"],
        &[&[], &[TWO], &["parallel.context=4"], &["parallel.context=4", PAIR, ZERO_2]],
    ),
    (GPT, &[PIECES, "model.context=272", "model.width=64"], &[&[], &[TWO], &[TWO, PAIR, PIPELINE]]),
    (
        LLAMA,
        &[PIECES, "model.tied=true", "model.qkv_bias=true", "model.activation=gelu"],
        &[&[], &[TWO], &[PIPELINE, TWO, SHARDED, PAIR]],
    ),
    (
        GPT,
        &[PIECES, "model.width=128", "precision.compute=bf16", "model.activation=relu"],
        &[&[], &[TWO, PIPELINE], &[TWO, PAIR, ZERO_3, BLOCK]],
    ),
    (
        LLAMA,
        &[PIECES, "model.width=128", "precision.compute=f16", "model.qk_norm=true"],
        &[&[], &[TWO, PIPELINE], &[TWO, PAIR, ZERO_3]],
    ),
    (
        GPT,
        &[PIECES, "model.width=128", "precision.compute=bf16", "precision.weights=f32"],
        &[&[], &[TWO], &[TWO, PIPELINE]],
    ),
    (
        GPT,
        &[PIECES, "model.width=128", "precision.compute=bf16", "precision.gradients=bf16"],
        &[&[], &[TWO, PAIR], &[TWO, PIPELINE], &[TWO, SHARDED], &[TWO, PAIR, ZERO_3]],
    ),
    (GPT, &[PIECES, "optim.state=8bit", "model.width=64"], &[&[], &[TWO], &[TWO, PAIR, SHARDED]]),
    (
        GPT,
        &[PIECES, "train.freeze=['w?e.*', 'h.0.attn*', '*.bias']"],
        &[&[], &[TWO], &[TWO, PIPELINE], &[TWO, THREE, ZERO_3]],
    ),
    (
        GPT,
        &[PIECES, "precision.compute=bf16", "precision.matmul=fp8", "model.width=64", "train.steps=2"],
        &[&[], &[TWO, PIPELINE], &[TWO, PAIR, ZERO_3, BLOCK]],
    ),
    (
        LLAMA,
        &[
            PIECES,
            "model.attention_sinks=true",
            "model.width=128",
            "precision.compute=bf16",
            "precision.gradients=bf16",
            "train.steps=2",
        ],
        &[&[], &[TWO, ZERO_BUBBLE, PIPELINE], &[TWO, SHARDED]],
    ),
    (GPT, &[PIECES, "lora.rank=2", "lora.dropout=0.1"], &[&[], &[TWO], &[TWO, PIPELINE]]),
    (
        GPT,
        &[PIECES, "data.separator=10", "data.document_mask=true", "data.pack_documents=true"],
        &[&[], &[TWO], &[TWO, PIPELINE]],
    ),
    (
        LLAMA,
        &[PIECES, LANES, "model.key_value_heads=4", "data.separator=10", "data.document_mask=true"],
        &[&[], &[TWO, TENSOR], &[TWO, PIPELINE, BLOCK]],
    ),
    (CHAT, &[PIECES], &[&[], &[TWO], &[TWO, PIPELINE, PAIR]]),
    (
        GPT,
        &[PIECES, "parallel.lanes=2", "train.global_batch_size=16"],
        &[&[], &[TWO, PAIR], &[TWO, PAIR, PIPELINE]],
    ),
];

#[test]
fn features_keep_their_bits_among_ranks_that_share_sequences() {
    check_on_devices(FEATURES);
    let of_families = [WINDOWS_AND_CAPS, WINDOWS_AND_FACTORS, LATENTS];
    check_on_devices(&of_families.map(|options| (LLAMA, options, GRIDS_OF_OPTIONS)));
}

const GRIDS_OF_OPTIONS: &[&[&str]] = &[&[PIECES], &[PIECES, TWO], &[PIECES, TWO, PIPELINE, BLOCK]];

/// Checks that pieces change only the order of sums.
#[test]
fn pieces_differ_from_whole_sequences_by_rounding_alone() {
    let documents = ["data.separator=10", "data.document_mask=true"];
    for (text, sets) in [
        (GPT, &["model.logit_soft_cap=20.0"][..]),
        (GPT, &["model.context=272"]),
        (GPT, &documents),
        (LLAMA, &documents),
        (LLAMA, &["model.qk_norm=true", "model.qkv_bias=true"]),
        (LLAMA, &["model.attention_sinks=true", "model.window=9"]),
        (LLAMA, WINDOWS_AND_CAPS),
        (LLAMA, WINDOWS_AND_FACTORS),
        (LLAMA, LATENTS),
        (CHAT, &[]),
    ] {
        // The second loss follows from an update.
        let run = |pieces: &str| {
            let ran = run(text, &[sets, &[pieces, "train.steps=2"]].concat());
            (ran.losses(), ran.weights.clone())
        };
        let (whole, weights) = run("parallel.context_lanes=1");
        for pieces in ["parallel.context_lanes=2", PIECES] {
            let (divided, of_pieces) = run(pieces);
            let close = whole.iter().zip(&divided).all(|(a, b)| (a - b).abs() < 2e-5 * a.abs());
            assert!(close, "{sets:?}, {pieces}: {whole:?} {divided:?}");
            assert_ne!(weights, of_pieces, "{sets:?}, {pieces}");
        }
    }
}

/// Covers dtypes, optimizer state, frozen weights, documents, checkpoints and preallocated memory.
#[test]
fn shared_sequences_keep_their_plans() {
    let gpt = [PIECES, "model.layers=4", "train.steps=2"];
    check(&[(
        GPT,
        &gpt,
        &[
            &[],
            &[TWO],
            &[TWO, BLOCK, PAIR, "checkpoint.every=1"],
            &[TWO, PIPELINE, ZERO_BUBBLE],
            &[TWO, PAIR, ZERO_3, "memory.preallocate=true"],
            &[TWO, SHARDED],
            &[TWO, ZERO_3, PIPELINE],
        ],
    )]);
    for more in [
        &["model.dropout=0.1"][..],
        &[THREE, ZERO_2, "model.tied=false"],
        &["precision.compute=bf16", "model.width=128", "train.global_batch_size=32"],
        &["precision.compute=f16", "precision.weights=f32", "model.width=128"],
        &["optim.state=8bit", "model.width=64", "train.freeze=['h.0.*']"],
        &["data.separator=10", "data.document_mask=true"],
        &["precision.matmul=fp8", "model.width=64"],
    ] {
        check(&[(GPT, &[&gpt[..], &[TWO], more].concat(), ONCE)]);
    }
    let llama = [PIECES, "parallel.tensor_lanes=2", "model.qk_norm=true", "train.steps=2", TWO, TENSOR];
    check(&[
        (LLAMA, &llama, &[&[PIPELINE], &[BLOCK, PAIR, ZERO_3]]),
        (LLAMA, &[&llama[..], &["model.attention_sinks=true"]].concat(), ONCE),
    ]);
}
