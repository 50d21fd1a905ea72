//! The keys of `[memory]`.

use keys::{Row, Takes, choice, section};
use nn::MOST_LAYERS;

use super::MOST;
use crate::choices::{OffloadPolicy, RecomputePolicy};

section! {
    /// `[memory]`: the caching allocator, recomputation and offloading.
    pub struct Memory = "memory" {
        /// Settings of the caching allocator, in the syntax of PYTORCH_CUDA_ALLOC_CONF.
        allocator: String = Row::text().default("\"\"").any_bits();
        /// Maximum bytes that a rank may reserve, for example to divide a device among ranks that share it;
        /// 0: the whole device.
        limit_bytes: u64 = Row::integer(0, MOST).default("0").any_bits();
        /// Reserves the planned peak at the start. Later steps then make no driver allocations, and no other
        /// process can take the memory.
        preallocate: bool = Row::flag().default("false").any_bits();
        /// Steps between calls in which each rank returns idle memory to the driver, as PyTorch's
        /// `empty_cache()`; 0: never. The next step allocates it again.
        empty_cache_every: u64 = Row::integer(0, MOST).default("0").any_bits();
        /// The activations that backward recomputes: none, each layer's separately, all in a number of
        /// segments, or the cheapest of these that fits. The bits are the same.
        recompute: RecomputePolicy = Row::new(
            Takes::ChoiceOrInteger(RecomputePolicy::NAMES, 1, MOST_LAYERS),
            RecomputePolicy::read,
            |policy| policy.value(),
        ).default("\"none\"").any_bits();
        /// Number of layers at the start of each pipeline stage to which `recompute` applies; 0: all.
        recompute_layers: usize = Row::count(0, MOST_LAYERS).default("0").any_bits();
        /// With "activations", the inputs of recomputed layers or segments are kept in host memory between
        /// forward and backward, pinned for a GPU. They are copied back one segment ahead. The bits are the
        /// same.
        offload: OffloadPolicy =
            choice!(OffloadPolicy, OffloadPolicy::ALL).default("\"none\"").any_bits();
        /// Keeps weights in host memory, pinned for a GPU, and copies each block's weights to the device
        /// ahead of their use. `parallel.prefetch` is the number of blocks ahead. The bits are the same.
        offload_weights: bool = Row::flag().default("false").any_bits();
        /// Number of allocator events that each rank records for the reports in the run directory's
        /// `memory/`; 0: no reports.
        history: u64 = Row::integer(0, 100_000_000).default("0").any_bits();
    }
}
