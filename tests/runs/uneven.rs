//! Tests of any number of data-parallel ranks up to the number of lanes, and any number of lanes that divides
//! a step.

use super::{
    BLOCK, GPIPE, INTERLEAVED, LIBRARY, ONCE, PAIRS, PIPELINE, Row, SHARDED, ZERO_2, ZERO_3, ZERO_BUBBLE,
    check, run_on,
};
use crate::common::devices::gpu;
use crate::common::runs::{GPT, LLAMA, MLP, RESNET};
use crate::common::sizes::{self, Sizes};
use worker::DeviceChoice;

const DROPOUT: &str = "model.dropout=0.1";

/// Ranks with uneven numbers of lanes, or with lanes in several subtrees.
const UNEVEN: &[Row] = &[
    // Every number of ranks; a lane is one micro-batch.
    (
        GPT,
        &["parallel.lanes=8", "train.global_batch_size=16", "train.steps=2", DROPOUT, "optim.clip_norm=0.1"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2"],
            &["parallel.data=3"],
            &["parallel.data=3", PIPELINE, SHARDED],
            &["parallel.data=4", SHARDED],
            &["parallel.data=5", SHARDED, "parallel.bucket_bytes=512"],
            &["parallel.data=6", "parallel.overlap=off"],
            &["parallel.data=7", BLOCK],
            &["parallel.data=8", SHARDED],
        ],
    ),
    // Several micro-batches per lane, and half precision.
    (
        GPT,
        &["parallel.lanes=5", "train.global_batch_size=20", "train.steps=3", DROPOUT, "model.width=64"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2"],
            &["parallel.data=3", PIPELINE, ZERO_BUBBLE],
            &["parallel.data=4", SHARDED, "parallel.bucket_bytes=100000000"],
            &["parallel.data=2", PIPELINE, GPIPE, SHARDED],
            &["parallel.data=5", SHARDED],
        ],
    ),
    (
        LLAMA,
        &[
            "parallel.lanes=12",
            "train.global_batch_size=24",
            "train.steps=2",
            "model.width=128",
            "precision.compute=bf16",
            "precision.gradients=bf16",
        ],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", PIPELINE],
            &["parallel.data=3", SHARDED],
            &["parallel.data=5", ZERO_2],
            &["parallel.data=4", BLOCK],
            &["parallel.data=6", PIPELINE, INTERLEAVED, SHARDED],
            &["parallel.data=6", ZERO_3, PAIRS],
            &["parallel.data=12"],
        ],
    ),
    // More parts than any GPU kernel adds at once.
    (
        MLP,
        &["parallel.lanes=35", "train.global_batch_size=350", "train.steps=2", "optim.kind=adamw"],
        &[
            &["parallel.data=1"],
            &["parallel.data=5", SHARDED],
            &["parallel.data=7"],
            &["parallel.data=7", PIPELINE],
        ],
    ),
    // Running statistics with uneven lanes, and 8-bit state in uneven shards.
    (
        RESNET,
        &["optim.kind=adamw", "optim.state=8bit"],
        &[
            &["parallel.data=1"],
            &["parallel.data=3", SHARDED],
            &["parallel.data=3", PIPELINE],
            &["parallel.data=3", ZERO_3],
            &["parallel.data=4"],
        ],
    ),
    // A library adds the ranks' sums in its own order, which is fixed for a grid.
    (
        GPT,
        &["parallel.data=3", LIBRARY],
        &[&[SHARDED], &["parallel.zero_stage=0"], &["parallel.bucket_bytes=512"]],
    ),
    // Several lanes per rank and several micro-batches per lane, whose last gradients need no set of their
    // own, in one bucket and in many, alone and sharded.
    (GPT, &["parallel.lanes=8", "train.global_batch_size=16"], ONCE),
    (GPT, &["parallel.lanes=8", "train.global_batch_size=16", "parallel.bucket_bytes=512"], ONCE),
    (GPT, &["parallel.lanes=8", "train.global_batch_size=16", "parallel.data=2", SHARDED], ONCE),
    (
        GPT,
        &[
            "parallel.lanes=8",
            "train.global_batch_size=16",
            "parallel.pipeline=2",
            "parallel.schedule=zero-bubble",
        ],
        ONCE,
    ),
    // Several micro-batches per lane, and several lanes per rank.
    (GPT, &["parallel.data=2", SHARDED, "train.global_batch_size=32"], ONCE),
    (MLP, &["parallel.data=2", "train.global_batch_size=320", "parallel.lanes=2"], ONCE),
    (
        GPT,
        &["parallel.lanes=8", "train.global_batch_size=16", "train.steps=2", "parallel.data=3", LIBRARY],
        ONCE,
    ),
    (MLP, &["parallel.lanes=12", "train.global_batch_size=120", "parallel.data=4", "optim.kind=adamw"], ONCE),
];

#[test]
fn any_number_of_ranks_has_equal_bits() {
    check(UNEVEN);
}

/// Asserts that every number of lanes and ranks in [`sizes::LANES`], on every grid, has the bits of one rank.
/// All ranks share the device.
fn assert_every_number_has_equal_bits(device: DeviceChoice, of_lane: usize) {
    for Sizes { common, data } in sizes::LANES.into_iter().flat_map(|lanes| sizes::rows(lanes, of_lane)) {
        let common: Vec<&str> = common.iter().map(String::as_str).collect();
        let reference = run_on(device, GPT, &common);
        for (data, (pipeline, grid)) in data.iter().flat_map(|data| sizes::GRIDS.map(|grid| (data, grid))) {
            let size = [
                format!("parallel.data={data}"),
                format!("parallel.pipeline={pipeline}"),
                format!("parallel.ranks_per_device={}", data * pipeline),
            ];
            let size: Vec<&str> = size.iter().map(String::as_str).collect();
            let shared = if device == DeviceChoice::Cpu { &size[..2] } else { &size };
            let actual = run_on(device, GPT, &[&common[..], shared, grid].concat());
            let name = format!("{device:?} {common:?} {size:?} {grid:?}");
            assert_eq!(reference.losses, actual.losses, "losses of {name}");
            assert_eq!(reference.weights, actual.weights, "weights of {name}");
            assert_eq!(reference.validation, actual.validation, "validation of {name}");
        }
    }
}

/// Only runs if `PLIMSOLL_LONG_TESTS` is set.
#[test]
fn every_number_of_threads_has_equal_bits() {
    for of_lane in [1, 2].into_iter().filter(|_| sizes::are_wanted()) {
        assert_every_number_has_equal_bits(DeviceChoice::Cpu, of_lane);
    }
}

/// Only runs if `PLIMSOLL_LONG_TESTS` is set.
#[test]
fn every_number_of_ranks_that_share_a_gpu_has_equal_bits() {
    if sizes::are_wanted() && gpu() {
        assert_every_number_has_equal_bits(DeviceChoice::Cuda, 1);
    }
}
