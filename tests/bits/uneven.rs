//! Any number of data-parallel ranks up to that of lanes, and any number of lanes that divides a step.

use super::{BLOCK, GPIPE, INTERLEAVED, LIBRARY, Row, SHARDED, ZERO_BUBBLE, assert_equal_bits, history};
use crate::common::runs::{GPT, LLAMA, MLP, RESNET};

const PIPELINE: &str = "parallel.pipeline=2";
const DROPOUT: &str = "model.dropout=0.1";

/// Runs of lanes that are uneven, or several subtrees.
const UNEVEN: &[Row] = &[
    // Every number of ranks; a lane is one micro-batch.
    (
        GPT,
        &["parallel.lanes=8", "train.global_batch_size=16", "train.steps=3", DROPOUT, "optim.clip_norm=0.1"],
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
    // Several micro-batches in a lane, and in half precision.
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
            &["parallel.data=4", BLOCK],
            &["parallel.data=6", PIPELINE, INTERLEAVED, SHARDED],
            &["parallel.data=12"],
        ],
    ),
    // More parts than any kernel of a GPU adds at once.
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
    // Running statistics of uneven runs, and 8-bit state in uneven shards.
    (
        RESNET,
        &["optim.kind=adamw", "optim.state=8bit"],
        &[
            &["parallel.data=1"],
            &["parallel.data=3", SHARDED],
            &["parallel.data=3", PIPELINE],
            &["parallel.data=4"],
        ],
    ),
    // A library adds the ranks' sums in its own order, on the same grid always the same.
    (
        GPT,
        &["parallel.data=3", LIBRARY],
        &[&[SHARDED], &["parallel.zero_stage=0"], &["parallel.bucket_bytes=512"]],
    ),
];

#[test]
fn any_number_of_ranks_has_equal_bits() {
    assert_equal_bits(UNEVEN);
}

/// All of them, if `PLIMSOLL_LONG_TESTS` is set; `tests/checkpoints.rs` resumes from each to each.
#[test]
fn every_number_of_ranks_on_every_grid_has_equal_bits() {
    if std::env::var_os("PLIMSOLL_LONG_TESTS").is_none() {
        return;
    }
    let all: [(usize, &[usize]); 3] =
        [(8, &[1, 2, 3, 4, 5, 6, 7, 8]), (12, &[1, 2, 3, 4, 6, 12]), (35, &[1, 5, 7])];
    let precisions: [&[&str]; 3] =
        [&[], &["precision.compute=bf16"], &["precision.compute=bf16", "precision.gradients=bf16"]];
    for ((lanes, sizes), precision) in all.into_iter().flat_map(|one| precisions.map(|more| (one, more))) {
        for of_lane in [1, 2] {
            let set = [
                format!("parallel.lanes={lanes}"),
                format!("train.global_batch_size={}", 2 * lanes * of_lane),
                "train.steps=3".to_owned(),
                "model.width=64".to_owned(),
                DROPOUT.to_owned(),
            ];
            let common: Vec<&str> = set.iter().map(String::as_str).chain(precision.iter().copied()).collect();
            let reference = history(GPT, &common);
            for data in sizes.iter().map(|data| format!("parallel.data={data}")) {
                for grid in [&[][..], &[SHARDED], &[PIPELINE], &[PIPELINE, SHARDED]] {
                    let actual = history(GPT, &[&common[..], &[data.as_str()], grid].concat());
                    assert_eq!(reference.losses, actual.losses, "losses of {common:?}, {data} {grid:?}");
                    assert_eq!(reference.weights, actual.weights, "weights of {common:?}, {data} {grid:?}");
                    assert_eq!(reference.validation, actual.validation, "{common:?}, {data} {grid:?}");
                }
            }
        }
    }
}
