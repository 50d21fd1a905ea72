//! Tests of partially trained models: frozen parameters and low-rank adapters.

use super::{BLOCK, GPIPE, INTERLEAVED, ONCE, PAIRS, Row, SHARDED, ZERO_2, ZERO_3, ZERO_BUBBLE, check};
use crate::common::runs::{GPT, LLAMA, MLP};

/// Frozen parameters: whole stages at the start, in the middle and at the end, a tied table, or everything
/// but biases.
const FROZEN: &[Row] = &[
    (
        GPT,
        &["model.layers=4", "optim.clip_norm=0.1", "train.freeze=['w?e.*', 'h.[01].*']"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2"],
            &["parallel.data=4", SHARDED],
            &["parallel.data=3", ZERO_2],
            &["parallel.data=3", ZERO_3],
            &["parallel.pipeline=2"],
            &["parallel.pipeline=4", ZERO_BUBBLE],
            &["parallel.pipeline=2", "parallel.data=2", INTERLEAVED, SHARDED],
            &["parallel.pipeline=2", "parallel.data=2", INTERLEAVED, ZERO_3],
            &["parallel.pipeline=4", GPIPE, BLOCK],
            &["memory.recompute=2", "parallel.data=2"],
        ],
    ),
    (
        GPT,
        &["model.layers=4", "train.freeze=['h.[23].*', 'ln_f.*', '*.weight']"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", SHARDED, BLOCK],
            &["parallel.data=4", ZERO_3, PAIRS],
            &["parallel.pipeline=4"],
            &["parallel.pipeline=2", "parallel.data=2", ZERO_BUBBLE, SHARDED],
        ],
    ),
    (
        GPT,
        &["model.tied=false", "train.freeze=['wte.*', '*.bias']"],
        &[&["parallel.data=1"], &["parallel.data=4", SHARDED], &["parallel.pipeline=2", BLOCK]],
    ),
    (
        LLAMA,
        &["model.qk_norm=true", "train.freeze=['*norm*', '*.mlp.down_proj.*', '*k_norm*']"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", BLOCK],
            &["parallel.pipeline=2", "parallel.data=2", SHARDED, ZERO_BUBBLE],
        ],
    ),
    (
        MLP,
        &["train.freeze=['[13].*']"],
        &[
            &["parallel.data=1"],
            &["parallel.pipeline=5"],
            &["parallel.data=4", SHARDED],
            &["parallel.data=3", ZERO_3, BLOCK],
            &[BLOCK],
        ],
    ),
    // Of a stage, sharded, recomputed, biases alone.
    (GPT, &["train.freeze=['w?e.*', 'h.0.*']", "parallel.pipeline=2", "parallel.data=2"], ONCE),
    (GPT, &["train.freeze=['h.1.*', 'ln_f.*']", "parallel.data=4", SHARDED, "memory.recompute=block"], ONCE),
    (LLAMA, &["train.freeze=['*.weight']", "model.qkv_bias=true", "parallel.data=2"], ONCE),
    (
        LLAMA,
        &[
            "train.freeze=['model.layers.[0-2].*']",
            "parallel.pipeline=4",
            "parallel.schedule=zero-bubble",
            "checkpoint.every=2",
        ],
        ONCE,
    ),
    (MLP, &["train.freeze=['0.*', '4.*']", "parallel.pipeline=5"], ONCE),
];

/// Low-rank adapters: on all layers, on some rows of packed layers, with dropout and activations.
const ADAPTED: &[Row] = &[
    (
        LLAMA,
        &["lora.rank=4", "lora.alpha=8", "optim.clip_norm=0.1"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2"],
            &["parallel.data=4", SHARDED],
            &["parallel.pipeline=2"],
            &["parallel.pipeline=4", ZERO_BUBBLE],
            &["parallel.pipeline=2", "parallel.data=2", INTERLEAVED, SHARDED],
            &["parallel.pipeline=2", "parallel.data=2", ZERO_BUBBLE, ZERO_3],
            &["parallel.data=4", ZERO_2, PAIRS],
            &[BLOCK],
            &["memory.recompute=2", "parallel.pipeline=2", GPIPE],
        ],
    ),
    (
        LLAMA,
        &["lora.rank=2", "lora.targets=['q_proj', 'v_proj', 'down_proj']", "lora.dropout=0.2"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", BLOCK, SHARDED],
            &["parallel.data=3", BLOCK, ZERO_3],
            &["parallel.pipeline=2", ZERO_BUBBLE, BLOCK],
        ],
    ),
    (
        GPT,
        &["lora.rank=3", "train.freeze=['*_proj.lora*', 'h.0.*']"],
        &[&["parallel.data=1"], &["parallel.data=4", SHARDED], &["parallel.pipeline=2", BLOCK]],
    ),
    (
        MLP,
        &["lora.rank=2", "lora.alpha=1", "model.activation=gelu", "lora.targets=['1', '3']"],
        &[&["parallel.data=1"], &["parallel.pipeline=5"], &["parallel.data=4", SHARDED], &[BLOCK]],
    ),
    // Scales, ranks of modules, and learning rates.
    (
        LLAMA,
        &[
            "lora.rank=4",
            "lora.scaling=rslora",
            "lora.rank_pattern=['down_proj=2', '*.layers.0.*=6']",
            "lora.alpha_pattern=['o_proj=16']",
            "lora.b_learning_rate=16",
            "optim.clip_norm=0.1",
        ],
        &[
            &["parallel.data=1"],
            &["parallel.data=2"],
            &["parallel.data=4", SHARDED],
            &["parallel.pipeline=2", "parallel.data=2", ZERO_BUBBLE, ZERO_3],
        ],
    ),
    // Modules trained as a whole beside adapters.
    (
        LLAMA,
        &[
            "lora.rank=2",
            "lora.train_also=['embed_tokens', 'lm_head', 'model.norm']",
            "lora.b_learning_rate=4",
        ],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", SHARDED],
            &["parallel.pipeline=2"],
            &["parallel.pipeline=2", "parallel.data=2", ZERO_BUBBLE, ZERO_3],
        ],
    ),
    // With dropout, on some layers, and over quantized bases.
    (LLAMA, &["lora.rank=4", "parallel.data=2", SHARDED], ONCE),
    (LLAMA, &["lora.rank=4", "lora.dropout=0.1", "memory.recompute=block", "parallel.pipeline=2"], ONCE),
    (
        LLAMA,
        &["lora.rank=2", "lora.targets=['k_proj', 'down_proj']", "parallel.pipeline=4", "checkpoint.every=2"],
        ONCE,
    ),
    (GPT, &["lora.rank=8", "lora.targets=['c_attn']", "parallel.data=4"], ONCE),
    (MLP, &["lora.rank=2", "model.activation=gelu", "parallel.pipeline=5"], ONCE),
    (
        LLAMA,
        &[
            "lora.rank=4",
            "lora.base=nf4",
            "precision.compute=bf16",
            "parallel.pipeline=2",
            "memory.recompute=block",
            "checkpoint.every=2",
        ],
        ONCE,
    ),
    (LLAMA, &["lora.rank=2", "lora.base=int4", "parallel.data=2", "parallel.zero_stage=3"], ONCE),
    (
        LLAMA,
        &["lora.rank=2", "lora.base=nf4", "parallel.tensor=2", "parallel.data=2", "parallel.zero_stage=3"],
        ONCE,
    ),
    (GPT, &["lora.rank=8", "lora.base=fp8", "lora.targets=['c_attn']"], ONCE),
];

/// Frozen matrices in a half type beside weights in f32: computing in f32 and under autocast.
const HALF_BASES: &[Row] = &[
    (
        LLAMA,
        &["lora.rank=2", "lora.base=bf16"],
        &[
            &["parallel.data=1"],
            &["parallel.data=4", SHARDED],
            &["parallel.data=2", ZERO_3, BLOCK],
            &["parallel.pipeline=2", "parallel.data=2", ZERO_BUBBLE, ZERO_3],
            &["memory.recompute=2", "parallel.pipeline=2", GPIPE],
        ],
    ),
    (
        LLAMA,
        &["model.experts=4", "lora.rank=2", "lora.base=f16", "lora.train_also=['lm_head']"],
        &[&["parallel.data=1"], &["parallel.data=2", ZERO_3], &["parallel.pipeline=2", BLOCK]],
    ),
    (
        GPT,
        &[
            "lora.rank=3",
            "lora.base=bf16",
            "precision.compute=bf16",
            "precision.weights=f32",
            "parallel.tensor_lanes=2",
        ],
        &[&["parallel.tensor=1"], &["parallel.tensor=2"], &["parallel.tensor=2", "parallel.data=2", ZERO_3]],
    ),
];

/// Quantized bases: in whole layers, in lanes, gathered, on stages, and for experts.
const IN_CODES: &[Row] = &[
    (
        LLAMA,
        &["lora.rank=4", "lora.base=nf4", "precision.compute=bf16"],
        &[
            &["parallel.data=1"],
            &["parallel.data=4", SHARDED],
            &["parallel.data=2", ZERO_3, BLOCK],
            &["parallel.pipeline=2", "parallel.data=2", ZERO_BUBBLE, ZERO_3],
            &["memory.recompute=2", "parallel.pipeline=2", GPIPE],
        ],
    ),
    (
        LLAMA,
        &["lora.rank=2", "lora.base=int4", "lora.targets=['q_proj', 'down_proj']", "parallel.tensor_lanes=2"],
        &[&["parallel.tensor=1"], &["parallel.tensor=2"], &["parallel.tensor=2", "parallel.data=2", ZERO_3]],
    ),
    (
        LLAMA,
        &["model.experts=4", "lora.rank=2", "lora.base=nf4"],
        &[&["parallel.data=1"], &["parallel.data=2", ZERO_3], &["parallel.pipeline=2", BLOCK]],
    ),
    (
        GPT,
        &["lora.rank=3", "lora.base=fp8", "lora.targets=['c_attn']"],
        &[&["parallel.data=1"], &["parallel.data=3", ZERO_3], &["parallel.pipeline=2", BLOCK]],
    ),
];

#[test]
fn frozen_parameters_keep_the_bits() {
    check(FROZEN);
}

#[test]
fn adapters_keep_the_bits() {
    check(ADAPTED);
}

#[test]
fn bases_in_a_half_type_keep_the_bits() {
    check(HALF_BASES);
}

#[test]
fn bases_in_codes_keep_the_bits() {
    check(IN_CODES);
}
