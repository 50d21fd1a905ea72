//! Runs with Muon: equal bits on every grid and across types, and planned bytes.

use super::*;
use crate::common::runs::{CHAT, LLAMA, MLP};

const MUON: &str = "optim.kind=muon";
const SPECTRAL: &str = "optim.muon_scale=spectral";
const TENSOR: &str = "parallel.tensor=2";
const CONTEXT: &str = "parallel.context=2";
const PIECES: &str = "parallel.context_lanes=4";
const OFFLOAD: &str = "optim.offload=true";

/// Grids that divide neither layers nor sequences.
const WHOLE: &[&[&str]] = &[
    &[],
    &[PAIR],
    &[PAIR, SHARDED],
    &[THREE, ZERO_2, BLOCK],
    &["parallel.data=4", ZERO_3, PAIRS],
    &[PIPELINE, ZERO_BUBBLE],
    &[PIPELINE, PAIR, INTERLEAVED, ZERO_3],
    &["memory.recompute=2", PIPELINE, GPIPE],
    &[OFFLOAD],
    &[OFFLOAD, "memory.offload_weights=true", PAIR],
];

/// Grids with tensor and context parallelism.
const DIVIDED: &[&[&str]] = &[
    &[],
    &[TENSOR],
    &["parallel.tensor=4", BLOCK],
    &[CONTEXT, PAIR],
    &[CONTEXT, TENSOR, ZERO_3],
    &[PAIR, TENSOR, SHARDED],
    &[THREE, TENSOR, ZERO_2],
    &[PIPELINE, PAIR, TENSOR, CONTEXT],
    &[PIPELINE, TENSOR, ZERO_3, OFFLOAD],
];

const ROWS: &[Row<'_>] = &[
    (GPT, &[MUON, "model.layers=4", "optim.clip_norm=0.1", "optim.muon_adamw_rate=0.1"], WHOLE),
    (
        LLAMA,
        &[
            MUON,
            SPECTRAL,
            LANES,
            PIECES,
            "model.key_value_heads=4",
            "model.layers=4",
            "optim.learning_rate=0.02",
        ],
        DIVIDED,
    ),
    // States of one byte, and rounded to bf16, beside halved weights and gradients.
    (
        LLAMA,
        &[MUON, "optim.state=8bit", "model.width=64", "precision.compute=bf16"],
        &[&[], &[PAIR, SHARDED], &["parallel.data=4", ZERO_3], &[PIPELINE, OFFLOAD]],
    ),
    (
        LLAMA,
        &[MUON, "optim.state=bf16", "precision.compute=f16", "precision.gradients=f16"],
        &[&[], &[THREE, SHARDED], &[PIPELINE, PAIR, ZERO_3]],
    ),
    // Experts, each a matrix of its own, and a router that AdamW updates.
    (
        LLAMA,
        &[MUON, LANES, "model.key_value_heads=4", "model.experts=4", "model.shared_expert_width=16"],
        &[&[], &[PAIR, ZERO_2], &[TENSOR], &[PIPELINE, TENSOR, ZERO_3]],
    ),
    // Adapters, with one rate for A and another for B.
    (
        LLAMA,
        &[MUON, LANES, "model.key_value_heads=4", "lora.rank=4", "lora.b_learning_rate=4"],
        &[&[], &[PAIR, ZERO_3], &[TENSOR], &["parallel.tensor=4", PAIR, SHARDED], &[PIPELINE]],
    ),
    (CHAT, &[MUON, "lora.rank=2"], &[&[], &[PAIR], &[PIPELINE, PAIR, ZERO_3]]),
    // Groups: matrices of other rules, matrices of another rate, and matrices of a run of another kind.
    (
        LLAMA,
        &[
            MUON,
            "optim.groups=[{match='*down_proj*', kind='adamw'}, {match='*layers.0*', learning_rate=0.5}]",
        ],
        &[&[], &[PAIR, SHARDED], &[PIPELINE, PAIR, ZERO_3]],
    ),
    (
        GPT,
        &["optim.groups=[{match='h.*.mlp_*.weight', kind='muon', weight_decay=0.5}]", "optim.kind=lion"],
        &[&[], &[PAIR, ZERO_3], &[PIPELINE]],
    ),
    (MLP, &[MUON], &[&[], &["parallel.pipeline=5"], &["parallel.data=4", SHARDED]]),
];

#[test]
fn muon_has_equal_bits_on_every_grid() {
    check_on_devices(ROWS);
}

/// A fused matrix is orthogonalised by part, so that its bits differ from AdamW's, and every setting counts.
#[test]
fn settings_of_muon_change_the_bits() {
    let weights = |sets: &[&str]| run(LLAMA, sets).weights.clone();
    let sets: [&[&str]; 6] = [
        &[],
        &[MUON],
        &[MUON, SPECTRAL],
        &[MUON, "optim.muon_momentum=0.9"],
        &[MUON, "optim.muon_coefficients=[2.0, -1.5, 0.5]"],
        &[MUON, "optim.muon_adamw_rate=0.5"],
    ];
    let all: BTreeSet<_> = sets.iter().map(|sets| weights(sets)).collect();
    assert_eq!(all.len(), sets.len());
}
