//! Tests of pipelines with every schedule on several grids.

use super::{BLOCK, GPIPE, INTERLEAVED, ONCE, Row, SHARDED, ZERO_BUBBLE, check};
use crate::common::runs::{GPT, MLP};

/// Pipelines with every schedule.
const STAGES: &[Row] = &[
    // The first and the last stage both hold the tied token embedding.
    (
        GPT,
        &["model.layers=4", "optim.clip_norm=0.1"],
        &[
            &["parallel.data=1"],
            &["parallel.pipeline=2"],
            &["parallel.pipeline=4"],
            &["parallel.pipeline=2", "parallel.data=2"],
            &["parallel.pipeline=2", "parallel.data=2", SHARDED],
            &["parallel.pipeline=2", "parallel.partition=[3, 1]"],
            &["parallel.pipeline=2", "parallel.partition=smallest"],
            &["parallel.pipeline=2", GPIPE],
            &["parallel.pipeline=4", GPIPE, "train.validation_micro_batches=3"],
            &["parallel.pipeline=2", "parallel.data=2", GPIPE, SHARDED],
            &["parallel.pipeline=2", INTERLEAVED],
            &["parallel.pipeline=2", "parallel.data=2", INTERLEAVED, SHARDED],
            &["parallel.pipeline=2", ZERO_BUBBLE],
            &["parallel.pipeline=4", ZERO_BUBBLE],
            &["parallel.pipeline=2", "parallel.data=2", ZERO_BUBBLE],
        ],
    ),
    (
        MLP,
        &[],
        &[
            &["parallel.data=1"],
            &["parallel.pipeline=5"],
            &["parallel.pipeline=2", GPIPE],
            &["parallel.pipeline=2", INTERLEAVED],
            &["parallel.pipeline=2", "parallel.data=2", ZERO_BUBBLE, SHARDED],
        ],
    ),
    (
        GPT,
        &["precision.compute=bf16", "model.width=64", "model.layers=4"],
        &[
            &["parallel.data=1"],
            &["parallel.pipeline=2"],
            &["parallel.pipeline=4", GPIPE],
            &["parallel.pipeline=2", "parallel.data=2", ZERO_BUBBLE, SHARDED],
            &["parallel.pipeline=2", INTERLEAVED, BLOCK],
        ],
    ),
    // Several micro-batches per lane and in flight.
    (
        GPT,
        &["parallel.lanes=2", "train.global_batch_size=16"],
        &[
            &["parallel.data=1"],
            &["parallel.pipeline=2"],
            &["parallel.pipeline=2", ZERO_BUBBLE],
            &["parallel.pipeline=2", "parallel.data=2", GPIPE],
        ],
    ),
];

#[test]
fn pipelines_have_equal_bits() {
    check(STAGES);
}

/// Every schedule with and without sharding, with one and several micro-batches per lane.
#[test]
fn schedules_have_equal_bits() {
    let common = ["model.layers=8", "train.global_batch_size=16", "train.steps=2"];
    for schedule in [GPIPE, "parallel.schedule=1f1b", INTERLEAVED, ZERO_BUBBLE] {
        let common = [&common[..], &[schedule]].concat();
        check(&[
            (
                GPT,
                &common,
                &[
                    &["parallel.pipeline=2"],
                    &["parallel.pipeline=2", "parallel.data=2", SHARDED, "parallel.bucket_bytes=512"],
                ],
            ),
            (
                GPT,
                &[&common[..], &["parallel.pipeline=4", "parallel.lanes=2", "checkpoint.every=2"]].concat(),
                ONCE,
            ),
            (
                GPT,
                &[
                    &common[..],
                    &["parallel.pipeline=2", "parallel.data=2", "train.validation_micro_batches=1"],
                ]
                .concat(),
                ONCE,
            ),
        ]);
    }
    check(&[
        (MLP, &["parallel.pipeline=5"], ONCE),
        (MLP, &["parallel.pipeline=2", "parallel.data=4", "optim.kind=adamw", SHARDED], ONCE),
    ]);
}
