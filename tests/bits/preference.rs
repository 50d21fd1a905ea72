//! Pairs of answers, whose reference scores all grids compute to the bit.

use super::{
    BLOCK, INTERLEAVED, LANES, PAIR, PAIRS, PIPELINE, Row, SHARDED, THREE, ZERO_2, ZERO_3, ZERO_BUBBLE,
    assert_equal_bits, history,
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
];

#[test]
fn preferences_keep_the_bits() {
    assert_equal_bits(PREFERENCES);
}

#[test]
fn settings_of_preferences_decide_bits() {
    let reference = history(PREFERENCE, &[]).weights;
    for different in [
        "preference.beta=0.2",
        "preference.label_smoothing=0.1",
        "preference.loss=ipo",
        "preference.loss=orpo",
    ] {
        assert_ne!(reference, history(PREFERENCE, &[different]).weights, "{different}");
    }
}
