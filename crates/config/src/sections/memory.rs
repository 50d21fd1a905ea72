//! The keys of `[memory]`.

use keys::{Row, Takes, choice, section};
use nn::MOST_LAYERS;

use super::MOST;
use crate::choices::{OffloadPolicy, RecomputePolicy};

section! {
    /// `[memory]`: the caching allocator, and the activations that are kept for backward.
    pub struct Memory = "memory" {
        /// Settings of the caching allocator, in the syntax of PYTORCH_CUDA_ALLOC_CONF.
        allocator: String = Row::text().default("\"\"").any_bits();
        /// Bytes that a rank may reserve, which divides a device among the ranks that share it; 0: all of the
        /// device.
        limit_bytes: u64 = Row::integer(0, MOST).default("0").any_bits();
        /// Takes the planned peak from the device at the start, so that nothing is asked of its driver later
        /// and no other process can take it meanwhile.
        preallocate: bool = Row::flag().default("false").any_bits();
        /// Steps between steps after which each rank returns its idle memory to the driver, as PyTorch's
        /// `empty_cache()`; 0: never. The next step requests it anew.
        empty_cache_every: u64 = Row::integer(0, MOST).default("0").any_bits();
        /// The activations that backward computes again instead of keeping: none, those of each layer, those
        /// of the layers in so many segments one segment at a time, or the cheapest of these that fits; the
        /// bits are the same.
        recompute: RecomputePolicy = Row::new(
            Takes::ChoiceOrInteger(RecomputePolicy::NAMES, 1, MOST_LAYERS),
            RecomputePolicy::read,
            |policy| policy.value(),
        ).default("\"none\"").any_bits();
        /// The number of layers of a pipeline stage that `recompute` is for, the first ones; 0: all.
        recompute_layers: usize = Row::count(0, MOST_LAYERS).default("0").any_bits();
        /// With activations, the inputs of recomputed layers or segments are in host memory between forward
        /// and backward, which is pinned for a GPU, and are copied back one segment ahead; the bits are the
        /// same.
        offload: OffloadPolicy =
            choice!(OffloadPolicy, OffloadPolicy::ALL).default("\"none\"").any_bits();
        /// Keeps weights in host memory, which is pinned for a GPU, and copies those of each block to the
        /// device ahead of their use; the bits are the same. `parallel.prefetch` says how many blocks ahead.
        offload_weights: bool = Row::flag().default("false").any_bits();
        /// Allocator events kept by each rank for the views in the run directory's `memory/`; 0: none are
        /// written.
        history: u64 = Row::integer(0, 100_000_000).default("0").any_bits();
    }
}
