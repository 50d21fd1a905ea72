//! Tests of grids: data parallelism, pipelines, and recomputed activations.

use super::{
    BLOCK, GPIPE, INTERLEAVED, LIBRARY, ONCE, PAIRS, Row, SHARDED, ZERO_2, ZERO_3, ZERO_BUBBLE, check,
};
use crate::common::runs::{GPT, LLAMA, MLP};

/// Data parallelism: lanes, buckets, ZeRO stages 0 and 1, and sums by the transport.
const GRIDS: &[Row] = &[
    (GPT, &[], &[&["parallel.data=1"], &["parallel.data=2"], &["parallel.data=4"]]),
    (MLP, &[], &[&["parallel.data=1"], &["parallel.data=2"], &["parallel.data=4"]]),
    // Several micro-batches per lane.
    (GPT, &["parallel.lanes=2"], &[&["parallel.data=1"], &["parallel.data=2"]]),
    // One bucket per gradient, and one bucket for all.
    (GPT, &["parallel.data=2"], &[&["parallel.bucket_bytes=512"], &["parallel.bucket_bytes=100000000"]]),
    // SGD on the transformer, without clipping.
    (GPT, &["optim.kind=sgd", "optim.clip_norm=0"], &[&["parallel.data=1"], &["parallel.data=4"]]),
    (
        GPT,
        &["optim.kind=lion", "optim.state=8bit", "model.width=64"],
        &[
            &["parallel.data=1"],
            &["parallel.data=4", SHARDED],
            &["parallel.data=3", ZERO_3],
            &["parallel.data=2", "parallel.pipeline=2"],
        ],
    ),
    // Optimizer state whole and sharded; with clipping, the norm affects every update.
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
    // Half precision, with sums in f32 or in the half-precision dtype.
    (
        GPT,
        &["precision.compute=bf16", "model.width=64"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", BLOCK],
            &["parallel.data=4"],
            &["parallel.data=2", SHARDED],
            &["parallel.data=4", SHARDED, "parallel.bucket_bytes=512"],
            &["parallel.data=3", ZERO_2, "parallel.bucket_bytes=512"],
            &["parallel.data=4", ZERO_3, PAIRS],
        ],
    ),
    (
        MLP,
        &["precision.compute=bf16", "precision.gradients=bf16"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", SHARDED],
            &["parallel.data=3", ZERO_2],
            &["parallel.data=4", ZERO_3],
            &["parallel.data=4"],
        ],
    ),
    // Rank 0's shard has every trained element, and the other ranks have none.
    (
        MLP,
        &["precision.compute=bf16", "model.sizes=[8, 8]", "parallel.bucket_bytes=512"],
        &[&["parallel.data=1"], &["parallel.data=2", SHARDED], &["parallel.data=3", ZERO_3]],
    ),
    (
        GPT,
        &["precision.compute=bf16", "model.width=64", "model.biases=false", "train.freeze=['w*', 'h.*']"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", SHARDED],
            &["parallel.data=2", ZERO_2],
            &["parallel.data=3", ZERO_3],
        ],
    ),
    // f32 weights, cast by operators to a half-precision dtype.
    (
        GPT,
        &["precision.compute=bf16", "precision.weights=f32", "model.width=64", "optim.clip_norm=0.1"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", BLOCK],
            &["parallel.data=4", SHARDED, "parallel.bucket_bytes=512"],
            &["parallel.pipeline=2"],
            &["parallel.pipeline=2", "parallel.data=2", ZERO_BUBBLE, SHARDED],
            &["parallel.pipeline=2", "parallel.data=2", ZERO_BUBBLE, ZERO_3],
        ],
    ),
    (
        LLAMA,
        &["precision.compute=f16", "precision.weights=f32", "model.width=128", "model.loss_pieces=2"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", SHARDED, BLOCK],
            &["parallel.data=3", ZERO_3, BLOCK],
            &["parallel.pipeline=2", GPIPE],
        ],
    ),
    // Optimizer state in bf16 with stochastic rounding.
    (
        GPT,
        &["optim.state=bf16"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", SHARDED],
            &["parallel.data=2", ZERO_2],
            &["parallel.data=3", ZERO_3],
            &["parallel.data=4", SHARDED, "parallel.bucket_bytes=512"],
            &["parallel.pipeline=2"],
        ],
    ),
    // Optimizer state in 8 bits, whose blocks are not divided by shards.
    (
        GPT,
        &["optim.state=8bit", "model.width=64", "precision.compute=bf16"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", SHARDED],
            &["parallel.data=2", ZERO_2],
            &["parallel.data=4", ZERO_3, PAIRS],
            &["parallel.data=4", SHARDED, "parallel.bucket_bytes=512"],
            &["parallel.pipeline=2"],
        ],
    ),
    (
        MLP,
        &["optim.state=8bit", "precision.gradients=f32"],
        &[&["parallel.data=1"], &["parallel.data=2", SHARDED], &["parallel.pipeline=2", ZERO_BUBBLE]],
    ),
    // Between threads, the transport's own sum uses the same tree.
    (
        GPT,
        &["parallel.data=4"],
        &[&["parallel.reduction=tree"], &[LIBRARY], &[LIBRARY, SHARDED], &[LIBRARY, "parallel.data=2"]],
    ),
    // Different roles, shards of every size, and the transport's sums.
    (MLP, &["parallel.data=1"], ONCE),
    (MLP, &["parallel.data=2"], ONCE),
    (MLP, &["parallel.data=4"], ONCE),
    (MLP, &["model.activation=gelu", "train.global_batch_size=40"], ONCE),
    (GPT, &["parallel.data=1"], ONCE),
    (GPT, &["parallel.data=2"], ONCE),
    (GPT, &["parallel.data=4"], ONCE),
    // Fewer validation micro-batches than ranks, so that their roles differ.
    (GPT, &["parallel.data=4", "train.validation_micro_batches=2"], ONCE),
    (GPT, &["parallel.data=2", "optim.kind=sgd", "train.steps=1"], ONCE),
    (GPT, &["parallel.data=2", "optim.kind=lion", SHARDED], ONCE),
    // Ranks own different shards of the optimizer state.
    (GPT, &["parallel.data=2", SHARDED], ONCE),
    (GPT, &["parallel.data=4", SHARDED, "parallel.bucket_bytes=512"], ONCE),
    (GPT, &["parallel.data=4", SHARDED, "model.width=256", "model.context=128", "train.steps=2"], ONCE),
    (MLP, &["parallel.data=2", SHARDED], ONCE),
    (MLP, &["parallel.data=4", SHARDED, "optim.kind=adamw", "checkpoint.every=2"], ONCE),
    (GPT, &["parallel.data=4", "parallel.reduction=nccl"], ONCE),
    (GPT, &["parallel.data=2", SHARDED, "parallel.reduction=nccl"], ONCE),
];

/// Recomputed and kept activations, on several grids.
const COMPUTED_AGAIN: &[Row] = &[
    // Recomputation in segments of any length.
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
    // Several micro-batches per lane.
    (
        GPT,
        &["parallel.lanes=2", "train.global_batch_size=16", "train.steps=3"],
        &[&["parallel.data=1"], &[BLOCK], &[BLOCK, "parallel.data=2"]],
    ),
    // Each stage recomputes in its own segments.
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
    // Segments of any length.
    (GPT, &["memory.recompute=block"], ONCE),
    (GPT, &["model.layers=5", "memory.recompute=2", "parallel.data=2", SHARDED], ONCE),
    (
        GPT,
        &["model.layers=5", "memory.recompute=2", "memory.recompute_layers=3", "train.global_batch_size=16"],
        ONCE,
    ),
    (GPT, &["memory.recompute=auto", "parallel.data=2"], ONCE),
    (MLP, &["memory.recompute=2", "parallel.data=4"], ONCE),
    (MLP, &["memory.recompute=block", "model.activation=gelu"], ONCE),
];

#[test]
fn data_parallel_grids_have_equal_bits() {
    check(GRIDS);
}

#[test]
fn recomputation_keeps_the_bits() {
    check(COMPUTED_AGAIN);
}
