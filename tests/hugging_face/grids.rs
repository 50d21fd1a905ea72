//! Grids on which the recorded models must have equal bits.

use crate::families::{CARRIED, MODELS, RECURRENT, WHOLE, is_on_all_grids};

pub(super) const GRIDS: &[&[&str]] = &[
    &[],
    &["parallel.data=4", "parallel.zero_stage=3", "parallel.shard=2"],
    &["parallel.data=2", "parallel.pipeline=2"],
    &["parallel.data=2"],
    &["parallel.pipeline=2"],
];

/// Grids with tensor parallelism, with two lanes in sums over divided dimensions.
const TENSOR_GRIDS: &[&[&str]] = &[
    &["parallel.tensor_lanes=2"],
    &["parallel.tensor=2", "parallel.data=2", "parallel.zero_stage=3"],
    &["parallel.tensor=2", "parallel.pipeline=2"],
    &["parallel.tensor=2"],
];

/// Grids with context parallelism, with four pieces per sequence.
pub(super) const CONTEXT_GRIDS: &[&[&str]] = &[
    &["parallel.context_lanes=4"],
    &["parallel.context=2", "parallel.context_lanes=4", "parallel.data=2", "parallel.zero_stage=3"],
    &["parallel.context=2", "parallel.context_lanes=4", "parallel.pipeline=2"],
];

/// One rank; and ranks with tensor and context parallelism, or context parallelism alone.
const FEW_GRIDS: &[&[&str]] =
    &[&[], &["parallel.tensor=2", "parallel.context=2", "parallel.context_lanes=4", "parallel.zero_stage=3"]];
/// One rank; ranks that share stages, sequences, and layers.
const RECURRENT_GRIDS: &[&[&str]] = &[
    &[],
    &["parallel.data=2", "parallel.pipeline=2", "parallel.zero_stage=1"],
    &["parallel.data=4", "parallel.zero_stage=3", "memory.recompute=block"],
    &["parallel.context=2", "parallel.context_lanes=4", "parallel.data=2", "parallel.zero_stage=3"],
    &["parallel.tensor=2", "parallel.data=2", "parallel.zero_stage=3"],
];
const FEW_GRIDS_OF_WHOLE_LAYERS: &[&[&str]] = &[&[], CONTEXT_GRIDS[1]];

/// Returns the models with the grids on which each must have equal bits: all grids for two models (or, with
/// `PLIMSOLL_LONG_TESTS`, for all), else a few.
pub(super) fn models_on_grids() -> Vec<(&'static str, &'static [&'static [&'static str]])> {
    let mut all: Vec<(_, &[&[&str]])> = Vec::new();
    for name in MODELS {
        if RECURRENT.contains(name) {
            all.extend([(*name, &RECURRENT_GRIDS[..1]), (*name, &RECURRENT_GRIDS[1..3])]);
            all.extend(RECURRENT_GRIDS[3..].chunks(1).map(|grids| (*name, grids)));
            continue;
        }
        if *name == CARRIED && !is_on_all_grids(name) {
            all.extend([(*name, &GRIDS[..1]), (*name, &GRIDS[3..]), (*name, &FEW_GRIDS[1..])]);
            continue;
        }
        match (is_on_all_grids(name), *name == WHOLE) {
            (true, false) => all.extend([(*name, GRIDS), (*name, TENSOR_GRIDS), (*name, CONTEXT_GRIDS)]),
            (true, true) => all.extend([(*name, GRIDS), (*name, CONTEXT_GRIDS)]),
            // The number of sequence pieces affects the bits.
            (false, false) => all.extend(FEW_GRIDS.chunks(1).map(|grids| (*name, grids))),
            (false, true) => all.extend(FEW_GRIDS_OF_WHOLE_LAYERS.chunks(1).map(|grids| (*name, grids))),
        }
    }
    all
}
