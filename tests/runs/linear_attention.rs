//! Tests of layers with a recurrent state: linear attention by the gated delta rule.

use super::{BLOCK, LANES, ONCE, PAIR, PAIRS, PIPELINE, Row, SHARDED, ZERO_3, ZERO_BUBBLE, check_on_devices};
use crate::common::runs::LLAMA;

const TWO: &str = "parallel.tensor=2";
const FOUR: &str = "parallel.tensor=4";
const CONTEXT: &str = "parallel.context=2";

const TYPES: &str = "model.layer_types=['linear_attention', 'full_attention']";
const GATE: &str = "model.attention_gate=true";
const VALUES: &str = "model.linear_value_heads=4";
const KEY_WIDTH: &str = "model.linear_key_width=8";
const VALUE_WIDTH: &str = "model.linear_value_width=12";

/// Linear attention in half of the layers, on whole sequences and on documents, with shared key heads and
/// experts, in bf16, with other norms than attention has, and with layers in shards. The last rows have
/// decays by channel, and attention over latents without rotation.
const LINEAR: &[Row] = &[
    (
        LLAMA,
        &[
            TYPES,
            GATE,
            VALUES,
            KEY_WIDTH,
            VALUE_WIDTH,
            "model.linear_key_heads=2",
            "model.qk_norm=true",
            "model.rope_width=4",
            "model.norms_less_one=true",
            "data.separator=10",
            "data.document_mask=true",
        ],
        &[
            &[],
            &["parallel.data=4", ZERO_3, PAIRS, BLOCK],
            &[PIPELINE, ZERO_BUBBLE],
            &[PIPELINE, PAIR, SHARDED],
        ],
    ),
    (
        LLAMA,
        &[
            LANES,
            TYPES,
            VALUES,
            KEY_WIDTH,
            "model.linear_key_heads=4",
            "model.linear_layout=grouped",
            "model.linear_negative_eigenvalues=true",
            "model.linear_epsilon=1e-4",
            "model.linear_norm_position=before",
            "model.norm_position=after",
            "model.key_value_heads=4",
            "model.experts=4",
            "model.shared_expert_width=16",
            "model.shared_expert_gate=true",
            "precision.compute=bf16",
            "precision.weights=f32",
            "train.steps=2",
        ],
        &[&[], &[TWO, BLOCK], &[FOUR, PIPELINE], &[TWO, PAIR, ZERO_3]],
    ),
    (
        LLAMA,
        &[
            LANES,
            TYPES,
            KEY_WIDTH,
            VALUE_WIDTH,
            "model.linear_channel_decays=true",
            "model.linear_gate_rank=6",
            "model.linear_gate=sigmoid",
            "model.latent_width=12",
            "model.rope_width=4",
            "model.rope_layers=[0]",
            "model.key_value_heads=4",
            "model.experts=4",
            "model.expert_layers=[0, 1]",
            "data.separator=10",
            "data.document_mask=true",
            "train.steps=2",
        ],
        &[&[], &["parallel.data=4", ZERO_3, PAIRS, BLOCK], &[TWO, PIPELINE], &[TWO, PAIR, ZERO_3, BLOCK]],
    ),
    (LLAMA, &[TYPES, GATE, "optim.kind=muon", "train.steps=2"], ONCE),
];

/// Sequences in pieces: with layers in shards, documents in bf16 with shared key heads, decays of channels.
const PIECES: &[Row] = &[
    (
        LLAMA,
        &[
            TYPES,
            GATE,
            VALUES,
            KEY_WIDTH,
            VALUE_WIDTH,
            LANES,
            "model.linear_key_heads=4",
            "model.key_value_heads=4",
            "parallel.context_lanes=4",
            "train.steps=2",
        ],
        &[&[], &[CONTEXT], &[CONTEXT, TWO, ZERO_3, BLOCK], &[CONTEXT, PIPELINE, ZERO_BUBBLE]],
    ),
    (
        LLAMA,
        &[
            TYPES,
            VALUES,
            KEY_WIDTH,
            "model.linear_key_heads=2",
            "model.linear_layout=grouped",
            "model.linear_negative_eigenvalues=true",
            "precision.compute=bf16",
            "precision.weights=f32",
            "data.separator=10",
            "data.document_mask=true",
            "parallel.context_lanes=8",
            "train.steps=2",
        ],
        &[&[], &[CONTEXT, PAIR, SHARDED], &["parallel.context=4", BLOCK]],
    ),
    (
        LLAMA,
        &[
            TYPES,
            KEY_WIDTH,
            VALUE_WIDTH,
            LANES,
            "model.linear_channel_decays=true",
            "model.linear_gate_rank=6",
            "model.latent_width=12",
            "model.rope_width=4",
            "model.rope_layers=[0]",
            "model.key_value_heads=4",
            "data.separator=10",
            "data.document_mask=true",
            "parallel.context_lanes=4",
            "train.steps=2",
        ],
        &[&[], &[CONTEXT, TWO]],
    ),
];

#[test]
fn linear_attention_has_equal_bits_on_every_grid() {
    check_on_devices(LINEAR);
}

#[test]
fn linear_attention_of_context_ranks_has_equal_bits_and_planned_bytes() {
    check_on_devices(PIECES);
}
