//! Mixtures of experts, whose bytes do not depend on the routing.

use super::{SHARDED, compare, compare_all};
use crate::common::runs::{BIASED_EXPERTS, CORRECTED_EXPERTS, LLAMA};

const LANES: &[&str] = &["parallel.tensor_lanes=4", "model.key_value_heads=4", "parallel.context_lanes=4"];

#[test]
fn plans_of_mixtures_equal_runs() {
    let grids: &[&[&str]] = &[
        &[],
        &["parallel.data=2", SHARDED, "memory.recompute=block"],
        &["parallel.data=3", "parallel.zero_stage=2"],
        &["parallel.pipeline=2", "parallel.data=2", "parallel.zero_stage=3"],
        &["parallel.pipeline=4", "parallel.schedule=zero-bubble", "checkpoint.every=1"],
    ];
    for grid in grids {
        compare(LLAMA, &[CORRECTED_EXPERTS, &["train.steps=2"], grid].concat());
    }
    let divided: &[&[&str]] = &[
        &[],
        &["parallel.tensor=2", "parallel.context=2"],
        &["parallel.tensor=4", "parallel.data=2", "parallel.zero_stage=3", "memory.recompute=2"],
    ];
    for grid in divided {
        compare(LLAMA, &[CORRECTED_EXPERTS, LANES, &["train.steps=2"], grid].concat());
    }
    compare_all(&[
        (LLAMA, &[BIASED_EXPERTS, LANES, &["parallel.tensor=2", "train.steps=2"]].concat()),
        (LLAMA, &[BIASED_EXPERTS, &["precision.compute=bf16", "model.head_width=32"]].concat()),
    ]);
}

/// Corrections so large that every token chooses the same experts from the second step on.
#[test]
fn a_plan_equals_a_run_whose_tokens_all_choose_the_same_experts() {
    let skewed = ["model.experts=6", "model.router_correction=true", "train.correction_rate=1e30"];
    compare(LLAMA, &[&skewed[..], &["parallel.data=2", "train.steps=4"]].concat());
}
