//! Tests that sharding state, gradients and weights over data-parallel ranks (ZeRO) changes no bit.

use super::{BLOCK, GPIPE, INTERLEAVED, LIBRARY, ONCE, PAIRS, PIPELINE, Row, ZERO_2, ZERO_3, ZERO_BUBBLE};
use super::{check, run};
use crate::common::runs::{GPT, LLAMA, MLP, RESNET};
use crate::common::sizes;

/// Settings of a run on every grid: fewer validation micro-batches than ranks, dropout and clipping.
const COMMON: [&str; 4] =
    ["train.steps=3", "train.validate_every=2", "model.dropout=0.1", "optim.clip_norm=0.1"];

/// Runs every ZeRO stage on every number of ranks, with and without a pipeline, half of them recomputed, and
/// sharding groups. With `PLIMSOLL_LONG_TESTS`, all with and without recomputation, and also in bf16.
#[test]
fn every_stage_on_every_grid_has_one_hash() {
    let grids = (0..=3).flat_map(|stage| (1..=4).flat_map(move |data| [(stage, data, 1), (stage, data, 2)]));
    let alone = grids.map(|(stage, data, pipeline)| (stage, data, pipeline, 0));
    let groups = [2, 3].into_iter().flat_map(|stage| [(stage, 4, 1, 2), (stage, 4, 2, 2), (stage, 3, 1, 1)]);
    let is_long = sizes::are_wanted();
    for precision in ["f32", "bf16"].into_iter().filter(|precision| is_long || *precision == "f32") {
        let compute = format!("precision.compute={precision}");
        let reference = run(GPT, &[&COMMON[..], &[&compute]].concat());
        for (number, (stage, data, pipeline, shard)) in alone.clone().chain(groups.clone()).enumerate() {
            let grid = [
                format!("parallel.zero_stage={stage}"),
                format!("parallel.data={data}"),
                format!("parallel.pipeline={pipeline}"),
                format!("parallel.shard={shard}"),
            ];
            let grid: Vec<&str> = grid.iter().map(String::as_str).collect();
            let recomputes = [&[][..], &[BLOCK]];
            let half = [recomputes[(stage + data + number / 2) % 2]];
            for recompute in if is_long { &recomputes[..] } else { &half } {
                let actual = run(GPT, &[&COMMON[..], &[&compute], &grid, recompute].concat());
                let name = format!("{precision} {grid:?} {recompute:?}");
                assert_eq!(reference.losses, actual.losses, "losses of {name}");
                assert_eq!(reference.weights, actual.weights, "weights of {name}");
                assert_eq!(reference.validation, actual.validation, "validation of {name}");
            }
        }
    }
}

/// Groups, prefetching, bucket ends, and lanes of several micro-batches.
const SHARDS: &[Row] = &[
    (
        GPT,
        &["parallel.lanes=8", "train.global_batch_size=16", "train.steps=3", "model.tied=false"],
        &[
            &["parallel.data=1"],
            &["parallel.data=5", ZERO_2, "parallel.bucket_bytes=512"],
            &["parallel.data=7", ZERO_3],
            &["parallel.data=6", ZERO_2, PAIRS, "parallel.bucket_bytes=100000000"],
            &["parallel.data=6", ZERO_3, "parallel.shard=3", "parallel.prefetch=0"],
            &["parallel.data=8", ZERO_3, "parallel.shard=4", BLOCK],
            &["parallel.data=4", ZERO_3, PAIRS, PIPELINE, "parallel.prefetch=3"],
        ],
    ),
    // Several micro-batches per lane, whose gradients accumulate in whole buckets.
    (
        GPT,
        &["parallel.lanes=5", "train.global_batch_size=20", "train.steps=3", "model.layers=4"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", ZERO_2],
            &["parallel.data=3", ZERO_3, PIPELINE, ZERO_BUBBLE],
            &["parallel.data=4", ZERO_3, PAIRS, "memory.recompute=2"],
            &["parallel.data=2", ZERO_2, PIPELINE, GPIPE],
            &["parallel.data=5", ZERO_3],
        ],
    ),
    // An interleaved schedule, and fewer lanes than micro-batches.
    (
        GPT,
        &["parallel.lanes=4", "train.global_batch_size=16", "train.steps=3", "model.layers=4"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", ZERO_2, PIPELINE, INTERLEAVED],
            &["parallel.data=2", ZERO_3, PIPELINE, INTERLEAVED],
            &["parallel.data=4", ZERO_3, PAIRS, PIPELINE, INTERLEAVED, BLOCK],
        ],
    ),
    (
        MLP,
        &["parallel.lanes=35", "train.global_batch_size=350", "train.steps=2", "optim.kind=adamw"],
        &[
            &["parallel.data=1"],
            &["parallel.data=6", ZERO_2],
            &["parallel.data=6", ZERO_3, "parallel.shard=3"],
            &["parallel.data=5", ZERO_3, PIPELINE],
        ],
    ),
    // Between threads, the transport's own sum over a power of two uses the same tree.
    (
        GPT,
        &["parallel.data=4"],
        &[&["parallel.reduction=tree"], &[LIBRARY, ZERO_2], &[LIBRARY, ZERO_3], &[LIBRARY, ZERO_3, PAIRS]],
    ),
    // Other numbers are summed in a different order, which is fixed for a grid.
    (
        GPT,
        &["parallel.data=3", "parallel.lanes=8", "train.global_batch_size=16", "train.steps=3", LIBRARY],
        &[&[ZERO_2], &[ZERO_3], &[ZERO_2, "parallel.bucket_bytes=512"], &[ZERO_3, "parallel.prefetch=0"]],
    ),
];

#[test]
fn shards_of_gradients_and_weights_keep_the_bits() {
    check(SHARDS);
}

/// Checks that a library's sums use the tree's lanes, although their order differs.
#[test]
fn a_library_sums_the_lanes_of_the_tree() {
    let on = |more: &[&str]| {
        let sets = ["parallel.data=3", "parallel.lanes=8", "train.global_batch_size=16", "train.steps=3"];
        run(GPT, &[&sets[..], more].concat()).losses()
    };
    let reference = on(&[]);
    for stage in [ZERO_2, ZERO_3] {
        let losses = on(&[LIBRARY, stage]);
        assert!(reference.iter().zip(&losses).all(|(a, b)| (a - b).abs() < 1e-4), "{reference:?} {losses:?}");
    }
}

/// Covers even and uneven lanes, bucket ends, prefetching, groups, pipelines, and lanes of several
/// micro-batches.
#[test]
fn shards_keep_their_plans() {
    let common = ["model.layers=4", "train.steps=2"];
    check(&[
        (
            GPT,
            &common,
            &[
                &["parallel.data=2", ZERO_2],
                &["parallel.data=3", ZERO_2, "parallel.bucket_bytes=512"],
                &["parallel.data=4", ZERO_2, PAIRS, PIPELINE, ZERO_BUBBLE],
                &["parallel.data=2", ZERO_3, "checkpoint.every=1"],
                &["parallel.data=3", ZERO_3, "parallel.prefetch=0", PIPELINE],
                &["parallel.data=4", ZERO_3, "parallel.prefetch=64", BLOCK],
            ],
        ),
        (
            GPT,
            &[&common[..], &["parallel.data=4", ZERO_3, PAIRS, "parallel.prefetch=2"]].concat(),
            &[&["train.validation_micro_batches=1"]],
        ),
        (
            GPT,
            &[&common[..], &["parallel.data=2", ZERO_2, "train.global_batch_size=32"]].concat(),
            &[&["train.validation_micro_batches=1"]],
        ),
        (
            GPT,
            &[&common[..], &["parallel.data=2", ZERO_3, "train.global_batch_size=32"]].concat(),
            &[&["memory.preallocate=true"]],
        ),
        (GPT, &[&common[..], &["parallel.data=3", ZERO_3, LIBRARY]].concat(), ONCE),
    ]);
}

/// Covers precisions, optimizer state, partial training, and families.
#[test]
fn features_in_shards_keep_their_plans() {
    let table: &[(&str, &[&str])] = &[
        (GPT, &["precision.compute=bf16", "model.width=64", "parallel.data=3", ZERO_2]),
        (GPT, &["precision.compute=f16", "model.width=64", "parallel.data=4", ZERO_3, PAIRS]),
        (
            GPT,
            &["precision.compute=bf16", "precision.weights=f32", "model.width=64", "parallel.data=2", ZERO_3],
        ),
        (GPT, &["precision.matmul=fp8", "parallel.data=2", ZERO_3]),
        (GPT, &["optim.state=8bit", "model.width=64", "parallel.data=3", ZERO_3]),
        (GPT, &["train.freeze=['w?e.*', 'h.0.*', '*.bias']", "parallel.data=3", ZERO_3]),
        (GPT, &["model.tied=false", "model.dropout=0.1", "parallel.data=2", ZERO_3]),
        (LLAMA, &["lora.rank=4", "parallel.data=2", ZERO_3]),
        (LLAMA, &["model.tied=true", "model.loss_pieces=3", "parallel.data=3", ZERO_2]),
        (MLP, &["optim.kind=adamw", "parallel.data=3", ZERO_3]),
        (RESNET, &["parallel.data=3", ZERO_3]),
        (RESNET, &["parallel.data=4", ZERO_2, PAIRS, BLOCK]),
    ];
    for (text, more) in table {
        check(&[(text, &[*more, &["train.steps=2"]].concat(), ONCE)]);
    }
}
