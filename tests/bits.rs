//! Every bit: the same losses and weights on any grid of ranks and any number of threads.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests, a panic is the report of a failure")]

mod common;

use common::runs::{GPT, MLP, train};

const SHARDED: &str = "parallel.shard_optimizer=true";
const GPIPE: &str = "parallel.schedule=gpipe";
const INTERLEAVED: &str = "parallel.schedule=interleaved";
const ZERO_BUBBLE: &str = "parallel.schedule=zero-bubble";
const BLOCK: &str = "memory.recompute=block";
const LIBRARY: &str = "parallel.reduction=nccl";

struct Course {
    losses: Vec<u32>,
    weights: String,
    validation: Option<u64>,
}

fn course(text: &str, overrides: &[&str]) -> Course {
    let report = train(text, overrides);
    Course {
        losses: report.summary.losses.iter().map(|loss| loss.to_bits()).collect(),
        weights: report.summary.weights_sha256.clone(),
        validation: report.validation_loss.map(f64::to_bits),
    }
}

/// A configuration, overrides that all runs of the row have, and the overrides that must not change a bit.
type Row = (&'static str, &'static [&'static str], &'static [&'static [&'static str]]);

/// Data-parallel ranks: lanes, buckets, the optimizer whole and divided, sums of the transport.
const GRIDS: &[Row] = &[
    (GPT, &[], &[&["parallel.data=1"], &["parallel.data=2"], &["parallel.data=4"]]),
    (MLP, &[], &[&["parallel.data=1"], &["parallel.data=2"], &["parallel.data=4"]]),
    // Several micro-batches a lane.
    (GPT, &["parallel.lanes=2"], &[&["parallel.data=1"], &["parallel.data=2"]]),
    // Buckets of one gradient each, and one bucket for all.
    (GPT, &["parallel.data=2"], &[&["parallel.bucket_bytes=512"], &["parallel.bucket_bytes=100000000"]]),
    // SGD on the transformer, without clipping.
    (GPT, &["optim.kind=sgd", "optim.clip_norm=0"], &[&["parallel.data=1"], &["parallel.data=4"]]),
    // The optimizer's state in one place and in parts; the norm decides every update.
    (
        GPT,
        &["optim.clip_norm=0.1", "model.width=64"],
        &[
            &["parallel.data=1"],
            &["parallel.data=1", SHARDED],
            &["parallel.data=2", SHARDED],
            &["parallel.data=4", SHARDED],
            &["parallel.data=4", SHARDED, "parallel.bucket_bytes=512"],
            &["parallel.data=2", SHARDED, "parallel.bucket_bytes=100000000"],
        ],
    ),
    (MLP, &[], &[&["parallel.data=1"], &["parallel.data=2", SHARDED], &["parallel.data=4", SHARDED]]),
    (
        MLP,
        &["optim.kind=adamw", "parallel.lanes=8"],
        &[&["parallel.data=1"], &["parallel.data=8"], &["parallel.data=8", SHARDED]],
    ),
    // Summed by the transport, which between threads adds in the same tree.
    (
        GPT,
        &["parallel.data=4"],
        &[&["parallel.reduction=tree"], &[LIBRARY], &[LIBRARY, SHARDED], &[LIBRARY, "parallel.data=2"]],
    ),
];

/// Stages of the model on several ranks, with every schedule.
const STAGES: &[Row] = &[
    // Stages of the model on several ranks, with every schedule; the table of tokens is in the first and in the last.
    (
        GPT,
        &["model.layers=4", "optim.clip_norm=0.1"],
        &[
            &["parallel.data=1"],
            &["parallel.pipeline=2"],
            &["parallel.pipeline=4"],
            &["parallel.pipeline=2", "parallel.data=2"],
            &["parallel.pipeline=2", "parallel.data=2", SHARDED],
            &["parallel.pipeline=2", "parallel.division=[3, 1]"],
            &["parallel.pipeline=2", "parallel.division=smallest"],
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
    // Several micro-batches a lane and in flight.
    (
        GPT,
        &["parallel.lanes=2", "train.micro_batches=8"],
        &[
            &["parallel.data=1"],
            &["parallel.pipeline=2"],
            &["parallel.pipeline=2", ZERO_BUBBLE],
            &["parallel.pipeline=2", "parallel.data=2", GPIPE],
        ],
    ),
];

/// Activations that are kept, and that are computed again, on any grid.
const COMPUTED_AGAIN: &[Row] = &[
    // Activations that are kept, and that are computed again, in segments of any length.
    (
        GPT,
        &["model.layers=5"],
        &[
            &["parallel.data=1"],
            &[BLOCK],
            &["memory.recompute=2"],
            &["memory.recompute=1", "parallel.data=2"],
            &["memory.recompute=2", "memory.recompute_layers=3", "parallel.data=4", SHARDED],
            &[BLOCK, "memory.recompute_layers=4", "parallel.data=2"],
            &["memory.recompute=auto"],
        ],
    ),
    // Several micro-batches a lane.
    (
        GPT,
        &["parallel.lanes=2", "train.micro_batches=8", "train.steps=3"],
        &[&["parallel.data=1"], &[BLOCK], &[BLOCK, "parallel.data=2"]],
    ),
    // Stages that compute activations again, each in segments of its own.
    (
        GPT,
        &["model.layers=5", "train.steps=3"],
        &[
            &["parallel.data=1"],
            &["parallel.pipeline=2", BLOCK],
            &["parallel.pipeline=2", "parallel.data=2", "memory.recompute=2", SHARDED],
            &["parallel.pipeline=2", "memory.recompute=2", ZERO_BUBBLE],
            &["parallel.pipeline=2", "memory.recompute=2", "memory.recompute_layers=2", INTERLEAVED],
        ],
    ),
    (
        MLP,
        &[],
        &[
            &["parallel.data=1"],
            &[BLOCK],
            &["memory.recompute=2", "parallel.data=2"],
            &["memory.recompute=3"],
        ],
    ),
    (MLP, &["model.activation=gelu"], &[&["parallel.data=1"], &[BLOCK], &["memory.recompute=2"]]),
];

#[test]
fn grids_of_ranks() {
    have_the_same_bits(GRIDS);
}

#[test]
fn stages_of_the_model() {
    have_the_same_bits(STAGES);
}

#[test]
fn activations_that_are_computed_again() {
    have_the_same_bits(COMPUTED_AGAIN);
}

/// All variants of a row have the losses, weights and validation of its first.
fn have_the_same_bits(table: &[Row]) {
    for (row, (text, common, variants)) in table.iter().enumerate() {
        let all = |variant: &[&'static str]| [*common, variant].concat();
        let reference = course(text, &all(variants[0]));
        assert!(reference.losses.iter().all(|loss| f32::from_bits(*loss).is_finite()));
        for variant in &variants[1..] {
            let other = course(text, &all(variant));
            assert_eq!(reference.losses, other.losses, "losses of row {row}, {variant:?}");
            assert_eq!(reference.weights, other.weights, "weights of row {row}, {variant:?}");
            assert_eq!(reference.validation, other.validation, "validation of row {row}, {variant:?}");
        }
    }
}

#[test]
fn what_must_change_the_bits_does() {
    let reference = course(GPT, &[]);
    for different in ["train.seed=2", "parallel.lanes=1", "optim.learning_rate=2e-3"] {
        assert_ne!(reference.weights, course(GPT, &[different]).weights, "{different}");
    }
}

#[test]
fn numbers_of_threads() {
    let hash = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| course(GPT, &["parallel.data=1"]).weights)
    };
    let one = hash(1);
    assert_eq!(one, hash(2));
    assert_eq!(one, hash(5));
}
