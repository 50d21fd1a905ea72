//! State, weights and activations in host memory: the pieces in which an update brings state to the device,
//! and the copies of blocks of weights and of inputs of segments ahead of their use, change no bit.

use super::{
    BLOCK, INTERLEAVED, PAIRS, PIPELINE, Row, SHARDED, ZERO_2, ZERO_3, ZERO_BUBBLE,
    assert_equal_bits_on_devices,
};
use worker::DeviceChoice;

use crate::common::runs::{GPT, LLAMA, MLP, RESNET, config, train_in};

const STATE: &str = "optim.offload=true";
const ACTIVATIONS: &str = "memory.offload=activations";
const WEIGHTS: &str = "memory.offload_weights=true";

/// Optimizers, types of states, precisions, clipping and grids; weights with masters and without, frozen and
/// tied ones, shards and stages.
const TABLE: &[Row] = &[
    (
        GPT,
        &["precision.compute=bf16", "model.width=64", "model.layers=4"],
        &[
            &[],
            &[STATE],
            &[STATE, "parallel.data=3", SHARDED],
            &[STATE, "parallel.data=2", ZERO_2, PIPELINE, ZERO_BUBBLE],
            &[STATE, "parallel.data=4", ZERO_3, PAIRS, BLOCK],
            &[WEIGHTS],
            &[WEIGHTS, "parallel.data=2", "parallel.prefetch=0"],
            &[ACTIVATIONS, BLOCK],
            &[ACTIVATIONS, "memory.recompute=2", "parallel.data=2", PIPELINE, ZERO_BUBBLE],
            &[ACTIVATIONS, BLOCK, PIPELINE, INTERLEAVED, STATE, "parallel.data=2", ZERO_3],
            &[WEIGHTS, "parallel.data=3", ZERO_3, PIPELINE, ZERO_BUBBLE],
        ],
    ),
    (
        GPT,
        &["precision.compute=bf16", "optim.kind=lion", "optim.state=bf16", "model.width=64"],
        &[
            &["parallel.data=2"],
            &[STATE],
            &[STATE, "parallel.data=3", ZERO_3],
            &[WEIGHTS, "optim.offload=true"],
        ],
    ),
    (
        LLAMA,
        &["precision.compute=bf16", "optim.state=8bit", "model.width=64"],
        &[&[], &[STATE, "parallel.data=2", SHARDED]],
    ),
    (
        GPT,
        &["precision.compute=bf16", "precision.matmul=fp8", "model.width=64", "model.layers=3"],
        &[
            &[],
            &[WEIGHTS, STATE],
            &[WEIGHTS, STATE, "parallel.data=2"],
            &[WEIGHTS, STATE, "parallel.data=3", ZERO_3],
        ],
    ),
    (
        LLAMA,
        &["precision.compute=bf16", "precision.matmul=fp8", "precision.fp8_recipe=rowwise", "model.width=64"],
        &[&[], &[WEIGHTS, STATE, BLOCK], &[WEIGHTS, STATE, PIPELINE]],
    ),
    (GPT, &["precision.compute=f16", "precision.scaler.init_scale=3e7"], &[&[], &[STATE]]),
    (
        GPT,
        &["lora.rank=4", "optim.state=bf16"],
        &[&[], &[STATE, "parallel.data=2"], &[WEIGHTS], &[WEIGHTS, BLOCK, PIPELINE]],
    ),
    (
        LLAMA,
        &["precision.compute=bf16", "lora.rank=4", "lora.base=nf4"],
        &[
            &[],
            &[WEIGHTS],
            &[WEIGHTS, ACTIVATIONS, BLOCK, "parallel.data=2"],
            &[WEIGHTS, "parallel.data=3", ZERO_3, PIPELINE],
        ],
    ),
    (
        GPT,
        &["model.tied=false", "train.freeze=['w?e.*', 'h.0.*']", "train.verify_every=2"],
        &[&[], &[WEIGHTS, PIPELINE], &[ACTIVATIONS, BLOCK], &[ACTIVATIONS, WEIGHTS, BLOCK]],
    ),
    (MLP, &["optim.kind=sgd"], &[&[], &[STATE], &[WEIGHTS, "parallel.tensor=1"]]),
    (
        RESNET,
        &["optim.kind=sgd", "precision.compute=bf16"],
        &[&[], &[STATE, "parallel.data=2"], &[WEIGHTS, "parallel.data=2"]],
    ),
];

#[test]
fn what_is_offloaded_has_equal_bits() {
    let common: &[&str] = &["train.steps=3", "train.validate_every=2", "optim.clip_norm=0.1"];
    for (text, sets, variants) in TABLE {
        let sets = [common, sets].concat();
        assert_equal_bits_on_devices(&[(text, sets.leak(), variants)]);
    }
}

/// A scale at which the first gradients in f16 overflow.
const OVERFLOWS: &[&str] = &["precision.compute=f16", "precision.scaler.init_scale=3e7", "model.width=64"];
/// A threshold that about half of the norms exceed.
const SPIKES: &[&str] = &[
    "precision.compute=bf16",
    "train.on_spike=skip",
    "train.spike_deviations=0.001",
    "train.spike_window=8",
    "train.steps=12",
    "model.width=64",
];

/// Every kind of offloading, of state and weights in each type, where updates are skipped.
#[test]
fn skipped_updates_leave_what_is_offloaded() {
    // Types of state and weights need one grid alone, and grids one type.
    const OF_TYPES: &[&[&str]] = &[&[], &[WEIGHTS, STATE]];
    const OF_GRIDS: &[&[&str]] = &[
        &[],
        &[STATE],
        &[WEIGHTS],
        &[WEIGHTS, STATE, "parallel.data=3", ZERO_3],
        &[WEIGHTS, "parallel.data=2", PIPELINE, ZERO_BUBBLE],
        &[STATE, "parallel.data=2", PIPELINE, SHARDED],
        &[WEIGHTS, ACTIVATIONS, BLOCK],
    ];
    let rows: &[(&[&str], Row)] = &[
        (OVERFLOWS, (GPT, &["model.layers=3"], OF_GRIDS)),
        (OVERFLOWS, (GPT, &["optim.kind=lion", "optim.state=bf16"], OF_TYPES)),
        (OVERFLOWS, (LLAMA, &["optim.state=8bit"], OF_TYPES)),
        (OVERFLOWS, (GPT, &["optim.kind=sgd", "precision.weights=f32"], OF_TYPES)),
        (OVERFLOWS, (LLAMA, &["lora.rank=4", "lora.base=nf4"], OF_TYPES)),
        (SPIKES, (GPT, &["model.layers=3"], OF_GRIDS)),
        (SPIKES, (LLAMA, &["optim.state=8bit"], OF_TYPES)),
        (SPIKES, (GPT, &["lora.rank=4"], OF_TYPES)),
    ];
    for (skips, (text, sets, variants)) in rows {
        let sets = [*skips, *sets].concat();
        let directory = tempfile::tempdir().unwrap();
        let report = train_in(directory.path(), config(text, &sets), DeviceChoice::Cpu).unwrap();
        let spikes = std::fs::read_to_string(directory.path().join("spikes.json")).unwrap_or_default();
        let skipped = report.to_string().contains("Skipped the update of") || spikes.contains("skip");
        assert!(skipped, "{sets:?}: {report}");
        assert_equal_bits_on_devices(&[(text, sets.leak(), variants)]);
    }
}
