//! Tests of averages of weights (`train.ema`): they change no bit of training, are equal on every grid, and
//! take the planned bytes. Validations compute with them, so that validation losses compare them too.

use device::{Description, Kind, LoggedCall};
use plan::{prepare, step_calls};
use worker::{Placement, Setup};

use super::{
    BLOCK, INTERLEAVED, LANES, LIBRARY, PAIRS, PIPELINE, Row, SHARDED, ZERO_2, ZERO_3, ZERO_BUBBLE, check,
    check_on_devices, run,
};
use crate::common::runs::{GPT, LLAMA, MLP, RESNET, config};

const EMA: &str = "train.ema=0.9";
const VALIDATED: &str = "train.validate_ema=true";
const OFTEN: &str = "train.validate_every=2";
/// Two or three of these steps update the averages, with a validation in between.
const FEW: &str = "train.steps=3";
const STATE: &str = "optim.offload=true";
const WEIGHTS: &str = "memory.offload_weights=true";
const BF16: &str = "precision.compute=bf16";
const TENSOR: &str = "parallel.tensor=2";

/// Models, optimizers, precisions and schedules of averages, on grids that hold the averages in shards, in
/// stages, or in host memory.
const TABLE: &[Row] = &[
    (
        GPT,
        &[EMA, VALIDATED, OFTEN, LANES, "model.heads=4", "train.ema_start=1", "model.layers=4", FEW],
        &[
            &[],
            &["parallel.data=2", SHARDED],
            &["parallel.data=3", ZERO_2],
            &["parallel.data=4", ZERO_3, PAIRS],
            &[PIPELINE, "parallel.data=2", SHARDED],
            &[PIPELINE, ZERO_BUBBLE, "parallel.data=2", ZERO_3],
            &[PIPELINE, INTERLEAVED, "parallel.data=2"],
            &[TENSOR, "parallel.data=2", SHARDED, BLOCK],
            &[TENSOR, ZERO_3, "parallel.data=2"],
            &[STATE],
            &[WEIGHTS, "parallel.data=2"],
            &[STATE, "parallel.data=3", SHARDED],
        ],
    ),
    (
        GPT,
        &[EMA, VALIDATED, OFTEN, BF16, "model.width=64", "model.layers=4", "train.ema_every=2", FEW],
        &[
            &[],
            &["parallel.data=2", SHARDED],
            &["parallel.data=4", ZERO_3, PAIRS],
            &[PIPELINE, "parallel.data=2", ZERO_2],
            &[STATE, "parallel.data=2", ZERO_3],
            &[WEIGHTS],
            &[WEIGHTS, "parallel.data=3", ZERO_3, PIPELINE],
        ],
    ),
    (
        LLAMA,
        &[EMA, VALIDATED, "lora.rank=2", "lora.b_learning_rate=4", "lora.train_also=['lm_head']", FEW],
        &[&[], &["parallel.data=2", SHARDED], &[PIPELINE, "parallel.data=2", ZERO_3], &[STATE]],
    ),
    (
        LLAMA,
        &[EMA, VALIDATED, "optim.kind=lion", "optim.state=8bit", "train.freeze=['*.layers.0.*']", FEW],
        &[&["parallel.data=2"], &["parallel.data=3", ZERO_3], &[STATE, "parallel.data=2", SHARDED]],
    ),
    (
        LLAMA,
        &[EMA, VALIDATED, "optim.kind=muon", BF16, "model.width=64", FEW],
        &[&[], &["parallel.data=2", SHARDED], &["parallel.data=3", ZERO_3], &[STATE], &[WEIGHTS, PIPELINE]],
    ),
    (
        MLP,
        &[EMA, VALIDATED, "optim.momentum=0", "train.ema_start=2", "train.ema_every=3"],
        &[&[], &["parallel.data=2", SHARDED], &["parallel.data=3", ZERO_2, PIPELINE], &[STATE]],
    ),
    (RESNET, &[EMA, VALIDATED], &[&[], &["parallel.data=2", ZERO_2], &[PIPELINE, STATE]]),
    (
        LLAMA,
        &[EMA, VALIDATED, "model.experts=4", "parallel.tensor_lanes=2", FEW],
        &[&[], &["parallel.data=2", ZERO_3], &[TENSOR, SHARDED]],
    ),
    // Some steps are skipped, because their gradients are not finite at the loss scale.
    (
        GPT,
        &[
            EMA,
            VALIDATED,
            OFTEN,
            "precision.compute=f16",
            "model.width=64",
            "precision.scaler.init_scale=3e7",
        ],
        &[&[], &["parallel.data=2", SHARDED], &[STATE, "parallel.data=2", ZERO_3]],
    ),
    (
        GPT,
        &[EMA, VALIDATED, "parallel.data=4", FEW],
        &[&[LIBRARY, SHARDED], &[LIBRARY, ZERO_2], &[LIBRARY, ZERO_3, PAIRS]],
    ),
];

#[test]
fn averages_have_equal_bits_and_the_planned_bytes_on_every_grid() {
    check(TABLE);
}

/// Runs that a GPU, where there is one, computes as well; all ranks share it.
const ON_DEVICES: &[Row] = &[
    (
        GPT,
        &[EMA, VALIDATED, OFTEN, BF16, "model.width=64", "train.ema_start=1", FEW],
        &[&[], &["parallel.data=2", SHARDED], &["parallel.data=2", ZERO_3], &[STATE], &[WEIGHTS]],
    ),
    (
        GPT,
        &[EMA, VALIDATED, OFTEN, "model.width=64", "train.ema_every=2", FEW],
        &[&[], &["parallel.data=2", ZERO_2], &[PIPELINE, SHARDED, "parallel.data=2"], &[WEIGHTS]],
    ),
];

#[test]
fn averages_on_devices_have_equal_bits_and_the_planned_bytes() {
    check_on_devices(ON_DEVICES);
}

/// An average changes neither losses nor weights, also when validations compute with it.
#[test]
fn an_average_does_not_change_training() {
    for common in [
        &[OFTEN][..],
        &[OFTEN, BF16, "model.width=64", "parallel.data=2", SHARDED],
        &[OFTEN, "parallel.data=2", ZERO_3, STATE],
        &[OFTEN, "memory.offload_weights=true"],
    ] {
        let with = |more: &[&str]| run(GPT, &[common, more].concat());
        let reference = with(&[]);
        let kept = with(&[EMA]);
        let validated = with(&[EMA, VALIDATED]);
        let late = with(&[EMA, VALIDATED, "train.ema_start=5", "train.ema_every=2"]);
        for other in [&kept, &validated, &late] {
            assert_eq!(reference.losses, other.losses, "{common:?}");
            assert_eq!(reference.weights, other.weights, "{common:?}");
        }
        assert_eq!(reference.validation, kept.validation, "{common:?}");
        assert_ne!(reference.validation, validated.validation, "{common:?}");
        // The average is the weights until step 5, and is next updated in step 7.
        assert_ne!(reference.validation, late.validation, "{common:?}");
    }
}

/// Returns the setup of a rank of a GPU that is imitated.
fn imitated(sets: &[&str]) -> Setup {
    let gpu = Description { kind: Kind::Cuda, compute_capability: (9, 0), ..Description::host() };
    prepare(config(GPT, sets), Placement::Meta(gpu)).unwrap()
}

/// Predictions time the updates of averages: twelve bytes an element that a rank owns, and the copies of
/// offloaded averages.
#[test]
fn the_calls_of_a_step_include_the_updates_of_averages() {
    let bytes = |sets: &[&str], is_counted: fn(&LoggedCall) -> bool| {
        let setup = imitated(sets);
        let ranks = setup.config.world_size();
        let of_rank = |rank: usize| {
            let mut bytes = 0;
            step_calls(&setup, rank).unwrap().for_each(|call| {
                bytes += if is_counted(call) { call.work().bytes } else { 0 };
            });
            bytes
        };
        (0..ranks).map(of_rank).sum::<u64>()
    };
    let is_average = |call: &LoggedCall| match call {
        LoggedCall::Kernel(kernel) => kernel.function.family().name == "weight_average",
        _ => false,
    };
    let parameters: usize = imitated(&[]).blueprint.sizes().iter().sum();
    for grid in [&[][..], &["parallel.data=2", SHARDED], &["parallel.data=3", ZERO_3], &[STATE]] {
        assert_eq!(bytes(grid, is_average), 0);
        let with = bytes(&[grid, &[EMA]].concat(), is_average);
        assert_eq!(with, 12 * parameters as u64, "{grid:?}");
    }
    let is_copy = |call: &LoggedCall| matches!(call, LoggedCall::Copy { .. });
    let [without, with] = [&[STATE][..], &[STATE, EMA, "train.ema_every=7"]].map(|sets| bytes(sets, is_copy));
    assert_eq!(with - without, 8 * parameters as u64);
}
