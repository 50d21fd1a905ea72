//! Interleaved 1F1B: several model chunks per rank, which divide the bubble by their number.
//!
//! Narayanan and others, *Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM*,
//! 2021. Stage s of p × v is on rank s modulo p. A rank processes micro-batches in groups of p: each group
//!       runs through its first chunk, then its second, and so on; backward starts from its last chunk. Rank
//!       r runs 2 (p − 1 − r) + (v − 1) p forward passes, then alternates one forward and one backward. With
//!       one chunk per rank it is 1F1B, whose warm-up is half as long.

use crate::pipeline::action::{Action, ActionKind};
use crate::pipeline::one_f_one_b;
use crate::pipeline::shape::Shape;

/// Returns the passes of a rank, in order. The micro-batches must be a multiple of the ranks.
pub(crate) fn order(shape: Shape, rank: usize) -> Vec<Action> {
    let Shape { ranks, chunks, micro_batches } = shape;
    if chunks == 1 {
        return one_f_one_b::order(ranks, rank, micro_batches);
    }
    let total = micro_batches * chunks;
    let forward = |i: usize| {
        let (chunk, micro_batch) = nth(ranks, chunks, i);
        Action::new(chunk * ranks + rank, ActionKind::Forward, micro_batch)
    };
    let backward = |i: usize| {
        let (chunk, micro_batch) = nth(ranks, chunks, i);
        Action::new((chunks - 1 - chunk) * ranks + rank, ActionKind::Backward, micro_batch)
    };
    let warm_up = warm_up(shape, rank);
    let mut actions: Vec<_> = (0..warm_up).map(forward).collect();
    for i in 0..total {
        if warm_up + i < total {
            actions.push(forward(warm_up + i));
        }
        actions.push(backward(i));
    }
    actions
}

/// Returns the number of forward passes of a rank before its first backward pass.
pub(crate) fn warm_up(shape: Shape, rank: usize) -> usize {
    let Shape { ranks, chunks, micro_batches } = shape;
    (2 * (ranks - 1 - rank) + (chunks - 1) * ranks).min(micro_batches * chunks)
}

/// Returns the chunk and micro-batch of the i-th pass in one direction.
fn nth(ranks: usize, chunks: usize, i: usize) -> (usize, usize) {
    let group = i / (ranks * chunks);
    let within = i % (ranks * chunks);
    (within / ranks, group * ranks + within % ranks)
}
