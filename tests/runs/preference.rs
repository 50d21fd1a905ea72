//! Tests of preference pairs, whose reference scores are bit-identical on all grids.

use super::{
    BLOCK, INTERLEAVED, LANES, ONCE, PAIR, PAIRS, PIPELINE, Row, SHARDED, THREE, ZERO_2, ZERO_3, ZERO_BUBBLE,
    check, run,
};
use crate::common::runs::PREFERENCE;

const TWO: &str = "parallel.tensor=2";

const PREFERENCES: &[Row] = &[
    (
        PREFERENCE,
        &["preference.label_smoothing=0.1"],
        &[
            &["parallel.data=1"],
            &[PAIR, SHARDED],
            &[THREE, ZERO_2],
            &["parallel.data=4", ZERO_3, PAIRS, BLOCK],
            &[PIPELINE, ZERO_BUBBLE],
            &[PIPELINE, PAIR, INTERLEAVED, ZERO_3],
        ],
    ),
    (
        PREFERENCE,
        &["preference.loss=ipo", "lora.rank=2", "lora.dropout=0.1", "model.loss_pieces=3"],
        &[&["parallel.data=1"], &[PAIR, ZERO_3], &[PIPELINE, PAIR, SHARDED, BLOCK]],
    ),
    (
        PREFERENCE,
        &["preference.loss=orpo", "precision.compute=f16", LANES],
        &[&["parallel.data=1"], &[TWO, PAIR], &[TWO, PIPELINE, ZERO_3]],
    ),
    (PREFERENCE, &[LANES, "model.loss_pieces=3", "model.logit_soft_cap=2.0"], &[&[], &[TWO, PAIR, ZERO_3]]),
    (
        PREFERENCE,
        &["data.group_by_length=true", "train.steps=6", LANES],
        &[&["parallel.data=1"], &[PAIR, SHARDED], &[TWO, PAIR], &["parallel.data=4", ZERO_3, PAIRS, BLOCK]],
    ),
    // Reference scores are computed before the first step; ranks may score different numbers of
    // micro-batches.
    (PREFERENCE, &["parallel.data=2", "parallel.zero_stage=3", "model.loss_pieces=3"], ONCE),
    (PREFERENCE, &["parallel.pipeline=2", "memory.recompute=block", "lora.rank=2"], ONCE),
    (PREFERENCE, &["preference.loss=orpo", "parallel.data=2", SHARDED, "memory.empty_cache_every=2"], ONCE),
    (PREFERENCE, &["preference.loss=ipo", "memory.empty_cache_every=2", "train.validate_every=1"], ONCE),
    (PREFERENCE, &["parallel.tensor=2", "parallel.tensor_lanes=2", "memory.preallocate=true"], ONCE),
    (PREFERENCE, &["data.validation_paths=[]", "data.validation_fraction=0", "parallel.data=2"], ONCE),
    (PREFERENCE, &["data.validation_paths=[]", "data.validation_split=shuffled", "parallel.data=2"], ONCE),
    // Ranks that score unequal numbers of micro-batches, or none.
    (PREFERENCE, &["parallel.data=5", "train.global_batch_size=5", "parallel.lanes=5"], ONCE),
    (PREFERENCE, &["parallel.data=4", "train.micro_batch_size=5", "train.global_batch_size=20"], ONCE),
    (
        PREFERENCE,
        &[
            "parallel.data=4",
            "train.micro_batch_size=5",
            "train.global_batch_size=20",
            "parallel.zero_stage=3",
        ],
        ONCE,
    ),
];

#[test]
fn preferences_keep_the_bits() {
    check(PREFERENCES);
}

#[test]
fn settings_of_preferences_decide_bits() {
    let reference = run(PREFERENCE, &[]);
    for different in [
        "preference.beta=0.2",
        "preference.label_smoothing=0.1",
        "preference.loss=ipo",
        "preference.loss=orpo",
    ] {
        assert_ne!(reference.weights, run(PREFERENCE, &[different]).weights, "{different}");
    }
}
