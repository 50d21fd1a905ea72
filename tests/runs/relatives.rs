//! Tests of models related to Llama: windows, soft caps, multipliers, and latents.

use super::{
    BLOCK, GPIPE, INTERLEAVED, ONCE, PAIRS, Row, SHARDED, ZERO_2, ZERO_3, ZERO_BUBBLE, check,
    check_on_devices,
};
use crate::common::runs::{
    ADAPTED_LATENTS, LATENTS, LAYER_EMBEDDINGS, LLAMA, PARALLEL_BRANCHES, SHARED_KEYS, WINDOWS_AND_CAPS,
    WINDOWS_AND_FACTORS, WITHOUT_GATES,
};

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

#[test]
fn relatives_of_llama_have_equal_bits() {
    check_on_devices(RELATIVES);
}

const FP8: &[&str] = &[
    "precision.matmul=fp8",
    "model.latent_width=16",
    "model.query_latent_width=16",
    "model.head_width=32",
    "model.rope_width=16",
    "model.value_width=16",
];
const BRANCHES: &str = "model.branch_dropout=0.1";
const IN_BF16: &[&str] = &["parallel.data=2", SHARDED, "precision.compute=bf16", "model.head_width=32"];

/// Windows and latents in further dtypes, lanes, pieces and pipelines.
#[test]
fn options_of_relatives_have_equal_bits() {
    for options in [WINDOWS_AND_CAPS, WINDOWS_AND_FACTORS] {
        let grids: &[&[&str]] =
            &[&[], &["parallel.pipeline=2", "parallel.data=2", BLOCK], &["parallel.pipeline=4", ZERO_BUBBLE]];
        check(&[(LLAMA, options, grids), (LLAMA, &[options, IN_BF16].concat(), ONCE)]);
    }
    let lanes = ["parallel.tensor_lanes=4", "parallel.tensor=2"];
    // Norms of heads that rotate partially or not at all.
    let part = ["model.qk_norm=true", "model.rope_width=4", "model.rope_layers=[1, 0]"];
    // Neighbouring columns that rotate before the norms, and dropout in branches alone.
    let last = ["model.qk_norm=true", "model.qk_norm_last=true", "model.rope_interleaved=true", BRANCHES];
    check(&[
        (LLAMA, &last, &[&[], &["parallel.pipeline=2", "parallel.data=2", ZERO_3, BLOCK]]),
        (LLAMA, &[&last[..], &["parallel.tensor_lanes=2", "parallel.tensor=2"]].concat(), ONCE),
        (LLAMA, &[&last[..], &["parallel.context=2", "parallel.context_lanes=4"]].concat(), ONCE),
        (LLAMA, LATENTS, &[&[], &["parallel.pipeline=2", ZERO_BUBBLE, BLOCK]]),
        (LLAMA, &[LATENTS, IN_BF16, &["model.value_width=16"]].concat(), ONCE),
        (LLAMA, &[LATENTS, &lanes, &["parallel.data=2", ZERO_3]].concat(), ONCE),
        (LLAMA, &[LATENTS, &["parallel.tensor_lanes=2", "parallel.context_lanes=2"]].concat(), ONCE),
        (LLAMA, &[LATENTS, &["parallel.context=2", "parallel.context_lanes=4"]].concat(), ONCE),
        (LLAMA, &[LATENTS, FP8].concat(), ONCE),
        (LLAMA, &[LATENTS, FP8, &["parallel.tensor_lanes=2", "parallel.tensor=2"]].concat(), ONCE),
        (LLAMA, ADAPTED_LATENTS, ONCE),
        (LLAMA, &[ADAPTED_LATENTS, &lanes].concat(), ONCE),
        (LLAMA, &part, &[&[], &["parallel.pipeline=2"]]),
    ]);
    let two = ["parallel.tensor_lanes=2", "parallel.tensor=2"];
    let context = ["parallel.context=2", "parallel.context_lanes=4"];
    check(&[
        (
            LLAMA,
            WITHOUT_GATES,
            &[&[], &["parallel.pipeline=2", ZERO_BUBBLE, BLOCK], &["parallel.data=3", ZERO_3]],
        ),
        (LLAMA, &[WITHOUT_GATES, &two, &context].concat(), ONCE),
        (LLAMA, PARALLEL_BRANCHES, &[&[], &["parallel.pipeline=2", "parallel.data=2", BLOCK, SHARDED]]),
        (LLAMA, &[PARALLEL_BRANCHES, &two, &["parallel.data=2", ZERO_3]].concat(), ONCE),
        (
            LLAMA,
            LAYER_EMBEDDINGS,
            &[
                &[],
                &["parallel.data=2", BLOCK, SHARDED],
                &["parallel.data=3", ZERO_3],
                &["parallel.pipeline=4", ZERO_BUBBLE],
                &["parallel.pipeline=2", "parallel.data=2", BLOCK, ZERO_3],
            ],
        ),
        (
            LLAMA,
            &[LAYER_EMBEDDINGS, &["parallel.tensor_lanes=2"]].concat(),
            &[&[], &["parallel.tensor=2", "parallel.pipeline=2", BLOCK]],
        ),
        (LLAMA, &[LAYER_EMBEDDINGS, &two, &context].concat(), ONCE),
    ]);
    // Keys and values cross every cut.
    let shared = [LAYER_EMBEDDINGS, SHARED_KEYS].concat();
    let half = ["precision.compute=bf16", "precision.weights=f32", "model.head_width=32"];
    check(&[
        (
            LLAMA,
            &shared,
            &[
                &[],
                &["parallel.pipeline=4"],
                &["parallel.pipeline=2", INTERLEAVED, "parallel.data=2", ZERO_3],
                &["parallel.pipeline=2", ZERO_BUBBLE],
                &["parallel.pipeline=2", GPIPE, "parallel.data=2", SHARDED],
            ],
        ),
        (
            LLAMA,
            &[&shared[..], &["parallel.tensor_lanes=2", "parallel.context_lanes=4"]].concat(),
            &[
                &["parallel.pipeline=4"],
                &["parallel.tensor=2", "parallel.context=2", "parallel.pipeline=2", ZERO_BUBBLE],
            ],
        ),
        (LLAMA, &[SHARED_KEYS, &half].concat(), &[&[], &["parallel.pipeline=4"]]),
    ]);
}
