//! Tests of tensor parallelism: ranks that share layers, and the lanes of sums over a divided dimension.

use super::recurrent::{ONE_GROUP, SHARED_GROUPS, TWO_GROUPS};
use super::{
    BLOCK, INTERLEAVED, LANES, ONCE, PAIR, PAIRS, PIPELINE, Row, SHARDED, THREE, ZERO_2, ZERO_3, ZERO_BUBBLE,
    check,
};
use super::{check_on_devices, run};
use crate::common::runs::{ADAPTED_LATENTS, GPT, LATENTS, LLAMA};

const TWO: &str = "parallel.tensor=2";
const FOUR: &str = "parallel.tensor=4";

/// Grids for each family: tensor parallelism, data parallelism with all ZeRO stages, pipelines and
/// recomputation.
const GRIDS: &[&[&str]] = &[
    &[],
    &[TWO],
    &[FOUR],
    &[BLOCK],
    &[TWO, BLOCK],
    &[FOUR, "memory.recompute=2"],
    &[PAIR],
    &[PAIR, TWO],
    &[PAIR, FOUR],
    &[THREE, TWO, SHARDED],
    &[THREE, FOUR],
    &["parallel.data=4", TWO],
    &[PIPELINE],
    &[PIPELINE, TWO],
    &[PIPELINE, FOUR],
    &[PIPELINE, TWO, ZERO_BUBBLE],
    &[PIPELINE, FOUR, "parallel.schedule=gpipe", BLOCK],
    &[PIPELINE, PAIR, TWO],
    &[PIPELINE, PAIR, FOUR, SHARDED],
    &[PIPELINE, PAIR, TWO, INTERLEAVED],
    &[PAIR, TWO, SHARDED],
    &[PAIR, FOUR, SHARDED, "parallel.bucket_bytes=512"],
    &[PAIR, TWO, ZERO_2],
    &[PAIR, FOUR, ZERO_2, BLOCK],
    &[THREE, TWO, ZERO_2],
    &[PAIR, ZERO_3],
    &[PAIR, TWO, ZERO_3],
    &[PAIR, FOUR, ZERO_3, BLOCK],
    &[THREE, TWO, ZERO_3, "parallel.prefetch=0"],
    &["parallel.data=4", TWO, ZERO_3, PAIRS],
    &[PIPELINE, PAIR, TWO, ZERO_3],
    &[PIPELINE, PAIR, FOUR, ZERO_3, ZERO_BUBBLE],
];

const FAMILIES: &[Row] = &[
    (
        GPT,
        &[
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
    (LLAMA, &[LANES, "model.key_value_heads=4", "model.qk_norm=true", "train.steps=2"], GRIDS),
];

#[test]
fn every_grid_with_four_lanes_has_one_hash() {
    check_on_devices(FAMILIES);
}

/// Numbers of lanes, precisions, low-precision state, frozen weights, biases, soft caps, and documents in
/// sequences.
const FEATURES: &[Row] = &[
    (
        GPT,
        &["parallel.tensor_lanes=2", "model.biases=false", "model.tied=false", "model.vocabulary=1006"],
        &[&[], &[TWO], &[PIPELINE, TWO]],
    ),
    (
        GPT,
        &["parallel.tensor_lanes=8", "model.heads=8", "model.logit_soft_cap=5.0"],
        &[&[], &[FOUR], &["parallel.tensor=8"], &[PAIR, TWO, ZERO_2]],
    ),
    (
        LLAMA,
        &["parallel.tensor_lanes=2", "model.tied=true", "model.qkv_bias=true", "model.activation=gelu"],
        &[&[], &[TWO], &[PIPELINE, TWO, SHARDED, PAIR]],
    ),
    (
        GPT,
        &[
            LANES,
            "model.width=128",
            "model.heads=4",
            "precision.compute=bf16",
            "model.activation=relu",
            "model.vocabulary=1004",
        ],
        &[&[], &[TWO, PIPELINE], &[FOUR, PAIR, ZERO_3, BLOCK]],
    ),
    (
        LLAMA,
        &[LANES, "model.width=128", "model.key_value_heads=4", "precision.compute=f16", "model.qk_norm=true"],
        &[&[], &[TWO, PIPELINE], &[FOUR, PAIR, ZERO_3]],
    ),
    (
        GPT,
        &[LANES, "model.width=128", "model.heads=4", "precision.compute=bf16", "precision.weights=f32"],
        &[&[], &[TWO], &[FOUR, PIPELINE]],
    ),
    (
        GPT,
        &[LANES, "model.width=128", "model.heads=4", "precision.compute=bf16", "precision.gradients=bf16"],
        &[&[], &[TWO, PAIR], &[FOUR, PIPELINE]],
    ),
    (
        GPT,
        &[LANES, "model.heads=4", "optim.state=8bit", "model.width=64"],
        &[&[], &[TWO], &[FOUR, PAIR, SHARDED]],
    ),
    (
        LLAMA,
        &[
            LANES,
            "model.key_value_heads=4",
            "model.window=8",
            "model.layer_types=['sliding_attention', 'full_attention', 'sliding_attention', 'full_attention']",
            "model.norm_position=both",
            "model.norms_less_one=true",
            "model.attention_soft_cap=20.0",
            "model.embedding_scale=5.5",
            "model.output_bias=true",
            "model.mlp_bias=true",
            "model.padding_tokens=[101]",
        ],
        &[&[], &[TWO, BLOCK], &[FOUR, PIPELINE], &[TWO, PAIR, ZERO_3]],
    ),
    (
        LLAMA,
        &[
            LANES,
            "model.key_value_heads=4",
            "model.qk_norm=true",
            "model.qk_norm_span=all",
            "model.norm_position=after",
            "parallel.context_lanes=2",
            "train.steps=2",
        ],
        &[&[], &[FOUR, PIPELINE, ZERO_BUBBLE], &[TWO, PAIR, ZERO_3, BLOCK]],
    ),
    (
        LLAMA,
        &[
            "parallel.tensor_lanes=2",
            "model.width=128",
            "precision.compute=bf16",
            "precision.weights=f32",
            "model.qk_norm=true",
            "model.qk_norm_span=all",
            "model.loss_pieces=2",
            "train.steps=2",
        ],
        &[&[], &[TWO]],
    ),
    (
        GPT,
        &[
            LANES,
            "model.heads=4",
            "model.loss_pieces=2",
            "model.logit_soft_cap=5.0",
            "model.tied=true",
            "train.steps=2",
        ],
        &[&[], &[FOUR, PIPELINE, ZERO_BUBBLE], &[TWO, PAIR, ZERO_2, BLOCK]],
    ),
    (
        LLAMA,
        &[
            LANES,
            "parallel.context_lanes=4",
            "model.key_value_heads=4",
            "model.attention_sinks=true",
            "train.steps=2",
        ],
        &[&[], &[FOUR, PIPELINE], &[TWO, "parallel.context=2", PAIR, ZERO_3, BLOCK]],
    ),
    (
        GPT,
        &[LANES, "model.heads=4", "train.freeze=['w?e.*', 'h.0.attn*', '*.bias']"],
        &[&[], &[TWO], &[FOUR, PIPELINE], &[TWO, THREE, ZERO_3]],
    ),
    (
        GPT,
        &[LANES, "model.heads=4", "data.separator=10", "data.document_mask=true", "data.pack_documents=true"],
        &[&[], &[TWO], &[FOUR, PIPELINE]],
    ),
    (
        GPT,
        &[
            LANES,
            "model.heads=4",
            "model.positions=sinusoidal",
            "parallel.lanes=2",
            "train.global_batch_size=16",
        ],
        &[&[], &[TWO, PAIR], &[FOUR, PAIR, ZERO_2]],
    ),
];

#[test]
fn features_keep_their_bits_among_ranks_that_share_layers() {
    check_on_devices(FEATURES);
    check_on_devices(OF_LATENTS);
}

/// Latents, whose layers are shared by all lanes.
const OF_LATENTS: &[Row] = &[
    (
        LLAMA,
        LATENTS,
        &[&[LANES], &[LANES, TWO], &[LANES, FOUR, PIPELINE, BLOCK], &[LANES, TWO, PAIR, ZERO_3]],
    ),
    (LLAMA, ADAPTED_LATENTS, &[&[LANES], &[LANES, FOUR], &[LANES, TWO, PAIR, ZERO_3, BLOCK]]),
    (
        LLAMA,
        LATENTS,
        &[
            &["parallel.tensor_lanes=2", "parallel.context_lanes=2"],
            &["parallel.tensor_lanes=2", "parallel.context_lanes=2", TWO, PIPELINE],
        ],
    ),
];

/// Adapters: on all layers and the head, on some rows of packed layers with dropout, partly frozen, and with
/// low-precision state.
const ADAPTED: &[Row] = &[
    (
        LLAMA,
        &[
            LANES,
            "model.key_value_heads=4",
            "lora.rank=4",
            "lora.alpha=8",
            "lora.targets=['all-linear', 'lm_head']",
            "optim.clip_norm=0.1",
            "train.steps=2",
        ],
        &[&[], &[FOUR, PIPELINE], &[TWO, PAIR, ZERO_3, BLOCK]],
    ),
    (
        LLAMA,
        &[
            "parallel.tensor_lanes=2",
            "lora.rank=2",
            "lora.targets=['q_proj', 'v_proj', 'up_proj', 'down_proj']",
            "lora.dropout=0.2",
            "train.steps=2",
        ],
        &[&[], &[TWO, PIPELINE, ZERO_BUBBLE]],
    ),
    (
        GPT,
        &[
            LANES,
            "model.heads=4",
            "model.width=128",
            "lora.rank=3",
            "train.freeze=['*_proj.lora*', 'h.0.*']",
            "precision.compute=bf16",
            "parallel.context_lanes=2",
            "train.steps=2",
        ],
        &[&[], &[FOUR, PIPELINE], &[TWO, PAIR, ZERO_2]],
    ),
];

#[test]
fn adapters_keep_their_bits_among_ranks_that_share_layers() {
    check_on_devices(ADAPTED);
}

/// FP8 matmuls, for layers with and without a bias and for the head, with per-tensor and per-row scales.
const FP8: &[Row] = &[
    (
        GPT,
        &[
            LANES,
            "model.heads=4",
            "model.width=64",
            "precision.compute=bf16",
            "precision.matmul=fp8",
            "train.steps=2",
        ],
        &[&[], &[FOUR, PIPELINE], &[TWO, PAIR, ZERO_3, BLOCK]],
    ),
    (
        LLAMA,
        &[
            "parallel.tensor_lanes=2",
            "parallel.context_lanes=4",
            "model.qk_norm=true",
            "model.width=128",
            "model.feed_forward=64",
            "model.vocabulary=352",
            "precision.matmul=fp8",
            "precision.compute=bf16",
            "precision.fp8_recipe=rowwise",
            "precision.fp8_layers=['*_proj', 'lm_head']",
            "train.steps=2",
        ],
        &[&[], &[TWO, PIPELINE], &[PAIR, TWO, "parallel.context=2", SHARDED, BLOCK]],
    ),
];

#[test]
fn fp8_matmuls_keep_their_bits_among_ranks_that_share_layers() {
    check_on_devices(FP8);
}

/// Checks that lanes and pieces with separate scales learn like whole layers in FP8 and in f32.
#[test]
fn lanes_in_fp8_learn_as_whole_layers_do() {
    let losses = |more: &[&str]| -> Vec<f32> {
        let sets = ["model.heads=4", "model.width=64", "train.steps=4"];
        run(GPT, &[&sets[..], more].concat()).losses()
    };
    const FP8: &str = "precision.matmul=fp8";
    let [whole, single] = [losses(&[FP8]), losses(&[LANES])];
    for more in [&[FP8, LANES][..], &[FP8, LANES, "parallel.context_lanes=2"]] {
        let lanes = losses(more);
        assert!(lanes != whole, "{more:?}");
        for reference in [&whole, &single] {
            let off = lanes.iter().zip(reference).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off < 0.01, "{more:?}: off by {off}");
        }
    }
}

/// Checks that lanes change only the order of sums.
#[test]
fn lanes_differ_from_whole_layers_by_rounding_alone() {
    for (text, sets) in [
        (GPT, &["model.heads=4", "model.logit_soft_cap=20.0"][..]),
        (LLAMA, &["model.key_value_heads=4", "model.qk_norm=true", "model.qkv_bias=true"]),
        (LLAMA, &["model.key_value_heads=4", "model.qk_norm=true", "model.qk_norm_span=all"]),
        (LLAMA, &["model.key_value_heads=4", "model.loss_pieces=2", "model.attention_sinks=true"]),
        (LLAMA, &["model.key_value_heads=4", "lora.rank=4", "lora.targets=['all-linear', 'lm_head']"]),
        (LLAMA, LATENTS),
        (LLAMA, &[SHARED_GROUPS, ONE_GROUP].concat()),
        (LLAMA, &[SHARED_GROUPS, TWO_GROUPS].concat()),
    ] {
        // The second loss follows from an update.
        let run = |lanes: &str| {
            let ran = run(text, &[sets, &[lanes, "train.steps=2"]].concat());
            (ran.losses(), ran.weights.clone())
        };
        let (whole, weights) = run("parallel.tensor_lanes=1");
        for lanes in ["parallel.tensor_lanes=2", LANES] {
            let (divided, of_lanes) = run(lanes);
            let close = whole.iter().zip(&divided).all(|(a, b)| (a - b).abs() < 2e-5 * a.abs());
            assert!(close, "{lanes}: {whole:?} {divided:?}");
            assert_ne!(weights, of_lanes, "{lanes}");
        }
    }
}

/// Covers dtypes, optimizer state, frozen weights, adapters, norms over all heads, checkpoints and
/// preallocated memory.
#[test]
fn shared_layers_keep_their_plans() {
    let gpt = [LANES, "model.heads=4", "model.layers=4", "train.steps=2"];
    check(&[(
        GPT,
        &gpt,
        &[
            &[],
            &[TWO],
            &[TWO, BLOCK, PAIR, "checkpoint.every=1"],
            &[FOUR, PIPELINE, ZERO_BUBBLE],
            &[TWO, PAIR, ZERO_3, "memory.preallocate=true"],
        ],
    )]);
    for more in [
        &[FOUR, "model.dropout=0.1"][..],
        &[TWO, "parallel.data=3", ZERO_2, "model.tied=false"],
        &[TWO, "precision.compute=bf16", "model.width=128", "train.global_batch_size=32"],
        &[FOUR, "precision.compute=f16", "precision.weights=f32", "model.width=128"],
        &[TWO, "optim.state=8bit", "model.width=64", "train.freeze=['h.0.*']"],
    ] {
        check(&[(GPT, &[&gpt[..], more].concat(), ONCE)]);
    }
    let llama = [LANES, "model.key_value_heads=4", "model.qk_norm=true", "train.steps=2"];
    check(&[(LLAMA, &llama, &[&[TWO, PIPELINE], &[FOUR, BLOCK, PAIR, ZERO_3]])]);
    for more in [
        &[TWO, "model.qk_norm_span=all", "model.loss_pieces=2"][..],
        &[FOUR, "model.qk_norm_span=all", "parallel.context_lanes=2", BLOCK],
        &["model.loss_pieces=2", "model.attention_sinks=true", PIPELINE],
        &[TWO, "lora.rank=4", "lora.dropout=0.1"],
        &[TWO, "lora.rank=4", BLOCK, PIPELINE],
        &[TWO, "model.width=64", "precision.matmul=fp8"],
        &["model.width=64", "precision.matmul=fp8", BLOCK],
    ] {
        check(&[(LLAMA, &[&llama[..], more].concat(), ONCE)]);
    }
}
