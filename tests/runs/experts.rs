//! Tests of mixtures of experts on all kinds of grids.

use std::collections::BTreeMap;

use run::RunOptions;
use serde_json::Value;
use worker::DeviceChoice;

use super::{
    BLOCK, GPIPE, INTERLEAVED, LANES, ONCE, PAIR, PAIRS, PIPELINE, Row, SHARDED, THREE, ZERO_2, ZERO_3,
    ZERO_BUBBLE, check,
};
use crate::common::runs::{BIASED_EXPERTS, CHAT, CORRECTED_EXPERTS, LLAMA, PACKED, config, train_in};

const PIECES: &str = "parallel.context_lanes=4";
const TENSOR: &str = "parallel.tensor=2";
const CONTEXT: &str = "parallel.context=2";

/// Grids without tensor and context parallelism.
const WHOLE: &[&[&str]] = &[
    &[],
    &[PAIR, BLOCK],
    &[THREE, ZERO_2],
    &["parallel.data=4", SHARDED],
    &["parallel.data=4", ZERO_3, PAIRS],
    &[PIPELINE, ZERO_BUBBLE],
    &[PIPELINE, PAIR, INTERLEAVED, ZERO_3],
    &["memory.recompute=2", PIPELINE, GPIPE],
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
    &[PIPELINE, CONTEXT, ZERO_BUBBLE, BLOCK],
    &[PIPELINE, TENSOR, ZERO_3, "memory.recompute=2"],
];

/// Settings of expert layers with FP8 matmuls, which align each expert's first row.
const IN_FP8: &[&str] =
    &["model.experts=4", "model.expert_width=32", "precision.compute=bf16", "precision.matmul=fp8"];
const ROWWISE: &[&str] = &[
    "model.experts=4",
    "model.expert_width=32",
    "train.balance_loss=0.01",
    "precision.compute=bf16",
    "precision.matmul=fp8",
    "precision.fp8_recipe=rowwise",
    "precision.fp8_layers=['*.experts.*']",
];

/// Uses conversations, whose padding must not affect the losses and loads of experts.
#[test]
fn padding_of_mixtures_keeps_the_bits() {
    let experts = [
        "model.kind=llama",
        "parallel.tensor_lanes=2",
        "parallel.context_lanes=4",
        "model.key_value_heads=2",
    ];
    let experts = [&experts[..], CORRECTED_EXPERTS].concat();
    let packed = [&PACKED[..], CORRECTED_EXPERTS].concat();
    check(&[
        (CHAT, &experts, &[&[], &[TENSOR, PAIR], &[CONTEXT, PIPELINE, ZERO_3], &[PAIR, BLOCK, SHARDED]]),
        (LLAMA, &packed, &[&[], &[PAIR, ZERO_3], &[PIPELINE, ZERO_BUBBLE]]),
    ]);
}

#[test]
fn mixtures_have_equal_bits_on_every_grid() {
    let table: &[Row] = &[
        (LLAMA, CORRECTED_EXPERTS, WHOLE),
        (LLAMA, BIASED_EXPERTS, &WHOLE[..3]),
        (LLAMA, &["model.experts=4", "precision.compute=bf16", "model.head_width=32"], &WHOLE[..2]),
        (LLAMA, IN_FP8, &WHOLE[3..6]),
        (LLAMA, ROWWISE, &WHOLE[..2]),
        (
            LLAMA,
            &["model.experts=4", "lora.rank=2", "lora.dropout=0.1", "lora.targets=['w3', 'w2']"],
            &WHOLE[3..7],
        ),
    ];
    check(table);
}

#[test]
fn divided_mixtures_have_equal_bits_on_every_grid() {
    let lanes: &[&str] = &[LANES, PIECES, "model.key_value_heads=4", "train.steps=2"];
    let adapters = ["model.experts=4", "model.mlp_bias=true", "lora.rank=2", "lora.targets=all-linear"];
    for (options, grids) in
        [(CORRECTED_EXPERTS, DIVIDED), (BIASED_EXPERTS, &DIVIDED[..5]), (&adapters, &DIVIDED[1..6])]
    {
        check(&[(LLAMA, &[lanes, options].concat(), grids)]);
    }
}

/// Resumes a checkpoint with score corrections on grids that divide layers, sequences and state.
#[test]
fn a_mixture_goes_on_on_another_grid() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let lanes = [LANES, PIECES, "model.key_value_heads=4", "checkpoint.every=2"];
    let train = |name: &str, grid: &[&str], resume: bool| {
        let config = config(LLAMA, &[CORRECTED_EXPERTS, &lanes, grid].concat());
        let run_dir = Some(at(name));
        let device = DeviceChoice::Cpu;
        let options = RunOptions { run_dir, resume, device, quiet: true, ..RunOptions::default() };
        run::train(config, options).unwrap().summary.weights_sha256
    };
    let expected = train("whole", &[], false);
    train("parts", &[TENSOR, CONTEXT, "train.steps=2"], false);
    assert_eq!(train("parts", &[PIPELINE, PAIR, ZERO_3, "train.steps=4"], true), expected);
}

/// Returns the loads of every layer after each step, and the resulting score corrections in a checkpoint.
fn loads(overrides: &[&str]) -> BTreeMap<u64, Value> {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let sets = [&["telemetry.every=1", "train.steps=3"], CORRECTED_EXPERTS, overrides].concat();
    train_in(&run_dir, config(LLAMA, &sets), DeviceChoice::Cpu).unwrap();
    let lines = std::fs::read_to_string(run_dir.join("metrics.jsonl")).unwrap();
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.map(|mut line| (line["step"].as_u64().unwrap(), line["expert_loads"].take())).collect()
}

#[test]
fn loads_of_experts_are_those_of_all_tokens_on_every_grid() {
    let expected = loads(&[PIECES]);
    assert_eq!(expected.len(), 3);
    let parsed = config(LLAMA, CORRECTED_EXPERTS);
    let choices = 2 * parsed.train.global_batch_size * parsed.model.examples().units();
    for loads in expected.values() {
        for layer in ["0", "1", "3"] {
            let tokens = loads[layer].as_array().unwrap().iter().filter_map(Value::as_u64);
            assert_eq!(tokens.clone().count(), 6);
            assert_eq!(tokens.sum::<u64>(), choices as u64, "layer {layer}");
        }
        assert_eq!(loads.as_object().unwrap().len(), 3);
    }
    for grid in [&[CONTEXT, PAIR][..], &[CONTEXT, PIPELINE, ZERO_3], &[PAIR, TENSOR, LANES, PIECES]] {
        let lanes: &[&str] = if grid.contains(&LANES) { &["model.key_value_heads=4"] } else { &[PIECES] };
        let actual = loads(&[grid, lanes].concat());
        // Other lanes change the bits of scores, which for few tokens changes the chosen experts.
        if !grid.contains(&LANES) {
            assert_eq!(actual, expected, "{grid:?}");
        }
        assert_eq!(actual.len(), 3, "{grid:?}");
    }
}

/// Checks that the bytes of mixtures do not depend on routing.
#[test]
fn mixtures_keep_their_plans() {
    let lanes: &[&str] = &[LANES, "model.key_value_heads=4", PIECES];
    let steps: &[&str] = &["train.steps=2"];
    // Corrections so large that every token chooses the same experts from the second step on.
    let skewed = ["model.experts=6", "model.router_correction=true", "train.correction_rate=1e30"];
    check(&[
        (
            LLAMA,
            &[CORRECTED_EXPERTS, steps].concat(),
            &[
                &[],
                &[PAIR, SHARDED, BLOCK],
                &["parallel.data=3", ZERO_2],
                &[PIPELINE, PAIR, ZERO_3],
                &["parallel.pipeline=4", ZERO_BUBBLE, "checkpoint.every=1"],
            ],
        ),
        (
            LLAMA,
            &[CORRECTED_EXPERTS, lanes, steps].concat(),
            &[&[], &[TENSOR, CONTEXT], &["parallel.tensor=4", PAIR, ZERO_3, "memory.recompute=2"]],
        ),
        (LLAMA, &[BIASED_EXPERTS, lanes, &[TENSOR], steps].concat(), ONCE),
        (LLAMA, &[BIASED_EXPERTS, &["precision.compute=bf16", "model.head_width=32"]].concat(), ONCE),
        (LLAMA, &[&skewed[..], &[PAIR, "train.steps=4"]].concat(), ONCE),
    ]);
}
