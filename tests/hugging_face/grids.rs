//! Grids on which the recorded models have equal bits.

use super::MODELS;
use crate::common::sizes;

/// The model whose layers are not divided: one key and value head.
const WHOLE: &str = "models/qwen2";

pub(super) const GRIDS: &[&[&str]] = &[
    &[],
    &["parallel.data=4", "parallel.zero_stage=3", "parallel.shard=2"],
    &["parallel.data=2", "parallel.pipeline=2"],
    &["parallel.data=2"],
    &["parallel.pipeline=2"],
];

/// Grids of ranks that share layers, whose sums over divided dimensions have two lanes.
const TENSOR_GRIDS: &[&[&str]] = &[
    &["parallel.tensor_lanes=2"],
    &["parallel.tensor=2", "parallel.data=2", "parallel.zero_stage=3"],
    &["parallel.tensor=2", "parallel.pipeline=2"],
    &["parallel.tensor=2"],
];

/// Grids of ranks that share sequences, which have four pieces.
pub(super) const CONTEXT_GRIDS: &[&[&str]] = &[
    &["parallel.context_lanes=4"],
    &["parallel.context=2", "parallel.context_lanes=4", "parallel.data=2", "parallel.zero_stage=3"],
    &["parallel.context=2", "parallel.context_lanes=4", "parallel.pipeline=2"],
];

/// One rank, and ranks that share layers and sequences, or sequences alone.
const FEW_GRIDS: &[&[&str]] =
    &[&[], &["parallel.tensor=2", "parallel.context=2", "parallel.context_lanes=4", "parallel.zero_stage=3"]];
const FEW_GRIDS_OF_WHOLE_LAYERS: &[&[&str]] = &[&[], CONTEXT_GRIDS[1]];

/// The models with the grids on which each has equal bits: all grids of two of them, and with
/// `PLIMSOLL_LONG_TESTS` of all; else few.
pub(super) fn models_on_grids() -> Vec<(&'static str, &'static [&'static [&'static str]])> {
    let mut all: Vec<(_, &[&[&str]])> = Vec::new();
    for name in MODELS {
        match (is_on_all_grids(name), *name == WHOLE) {
            (true, false) => all.extend([(*name, GRIDS), (*name, TENSOR_GRIDS), (*name, CONTEXT_GRIDS)]),
            (true, true) => all.extend([(*name, GRIDS), (*name, CONTEXT_GRIDS)]),
            // The pieces of sequences decide bits.
            (false, false) => all.extend(FEW_GRIDS.chunks(1).map(|grids| (*name, grids))),
            (false, true) => all.extend(FEW_GRIDS_OF_WHOLE_LAYERS.chunks(1).map(|grids| (*name, grids))),
        }
    }
    all
}

/// Returns whether a model is tried on all grids.
pub(super) fn is_on_all_grids(name: &str) -> bool {
    matches!(name, "models/gpt2" | "models/qwen3") || sizes::are_wanted()
}
