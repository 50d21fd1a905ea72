//! The keys of `[parallel]`.

use std::path::PathBuf;

use collective::{Axis, GridShape, PeerMethod};
use keys::{Row, Takes, choice, section};
use nn::{MOST_LAYERS, Shards};
use parallel::data::Reduction;
use parallel::pipeline::ScheduleKind;

use super::train;
use crate::choices::{Overlap, PartitionPolicy, path_value, read_path};
use crate::paths;

/// Maximum number of ranks that share a GPU, the operand limit of the summing kernel.
const MOST_RANKS_PER_DEVICE: u64 = 64;

section! {
    /// `[parallel]`: how the work is distributed over ranks.
    pub struct Parallel = "parallel" {
        /// Number of data-parallel ranks, which share the micro-batches: any number up to `lanes`. Lanes are
        /// distributed as evenly as possible.
        data: usize = Row::count(1, 1 << 20).default("1").any_bits();
        /// Number of pipeline-parallel ranks, which share the layers.
        pipeline: usize = Row::count(1, MOST_LAYERS).default("1").any_bits();
        /// Number of tensor-parallel ranks, which share each layer: its weights, the heads of attention, the
        /// columns of feed-forward layers, the vocabulary, and the rows between layers. They are neighbours,
        /// best on one host. The number must divide `tensor_lanes`.
        tensor: usize = Row::count(1, 1 << 10).default("1").any_bits();
        /// Number of parts of each layer. Each part is computed separately, in the same way on any number of
        /// ranks, and a fixed tree adds the results in f32.
        tensor_lanes: usize = Row::count(1, 1 << 10)
            .derived("as many as `tensor`", |raw| Ok(raw.integer(Parallel::tensor)?.into()));
        /// Number of context-parallel ranks, which share each sequence: each computes some of its pieces, and
        /// exchanges keys and values, and recurrent layers' states. If above 1, half of `context_lanes` must
        /// be a multiple of the number.
        context: usize = Row::count(1, 1 << 10).default("1").any_bits();
        /// Number of pieces of each sequence, a power of two. Each piece is computed separately, in the same
        /// way on any number of ranks, and a fixed tree adds gradients in f32.
        context_lanes: usize = Row::count(1, 1 << 11)
            .derived("twice `context`, or 1 if that is 1", |raw| {
                let ranks = raw.integer(Parallel::context)?;
                Ok(if ranks > 1 { 2 * ranks } else { 1 }.into())
            });
        /// Number of separate gradient sums, which a fixed tree adds: any divisor of the micro-batches per
        /// step.
        lanes: usize = Row::count(1, 1 << 20).derived(
            "1 where no size of the grid is written (`data`, `pipeline`, `tensor`, `context` and their lanes); \
             otherwise the largest power of two, at most 8, that divides the micro-batches of a step",
            |raw| {
                let axes = [Parallel::data, Parallel::pipeline, Parallel::tensor, Parallel::context];
                let shards = [Parallel::tensor_lanes, Parallel::context_lanes];
                if !axes.iter().chain(&shards).any(|key| raw.is_set(key)) {
                    return Ok(1_u64.into());
                }
                let micro = train::default_micro_batch_size(raw)?.max(1);
                Ok(crate::lanes::default_lanes(train::default_global_batch_size(raw)? / micro).into())
            },
        );
        /// The order of passes in a pipeline; the bits are the same. On one rank each micro-batch ends before
        /// the next begins.
        schedule: ScheduleKind = choice!(ScheduleKind, ScheduleKind::ALL).default("\"1f1b\"").any_bits();
        /// Number of pipeline stages per rank.
        chunks: usize = Row::count(1, MOST_LAYERS)
            .default("2")
            .only(Parallel::schedule, &["interleaved"])
            .any_bits()
            .finish(|count, raw| match raw.text(Parallel::schedule)?.as_str() {
                "interleaved" => Ok(count),
                _ => Ok(1),
            });
        /// How layers are divided over pipeline stages: so that the slowest stage is fastest, so that the
        /// largest memory peak is smallest, or by the number of layers in each stage.
        partition: PartitionPolicy = Row::new(
            Takes::ChoiceOrIntegers(PartitionPolicy::NAMES, 1, MOST_LAYERS),
            PartitionPolicy::read,
            PartitionPolicy::value,
        ).default("\"fastest\"").any_bits().renamed("parallel.division", "");
        /// A file of layer times written by `plimsoll plan --profile`, relative to the configuration file,
        /// for choosing the partition. Without it, the partition is based on counted FLOPs and bytes.
        profile: Option<PathBuf> = Row::new(Takes::Text, read_path, path_value)
            .default("\"\"")
            .only(Parallel::partition, &["fastest"])
            .any_bits()
            .local()
            .finish(|path, raw| paths::file(path, raw, Parallel::profile, "file of times"));
        /// The order in which gradients are added over ranks: "tree", a fixed tree with the same bits on
        /// every grid, or "nccl", NCCL's order with the same bits only on the same grid.
        reduction: Reduction = choice!(Reduction, Reduction::ALL).default("\"tree\"");
        /// The ZeRO stage: which state data-parallel ranks shard. 1: the optimizer's; 2: also gradients; 3:
        /// also weights, which are gathered before their use. The bits are the same.
        zero_stage: u32 = Row::small(0, 3).default("0").any_bits()
            .renamed("parallel.shard_optimizer", ": true is 1, false is 0");
        /// Number of neighbouring data-parallel ranks that shard state from ZeRO stage 2 on; must divide
        /// `data`. Each such group has a full copy. 0: all ranks share one copy.
        shard: usize = Row::count(0, 1 << 20).default("0").any_bits();
        /// Number of weight units (embedding, blocks, head) gathered ahead of their use. The bits are the
        /// same.
        prefetch: usize = Row::count(0, 64).default("1").any_bits();
        /// Bytes of gradients per bucket. A bucket is reduced in one call.
        bucket_bytes: u64 = Row::integer(512, 1 << 40).default("67108864").any_bits();
        /// The time at which ranks sum gradients: as buckets fill (on), late in backward (late), or after
        /// backward (off). auto: late if GPUs of one host sum through peer access, or after backward if they
        /// also shard the optimizer state; elsewhere as buckets fill. The bits are the same.
        overlap: Overlap = choice!(Overlap, Overlap::ALL).default("\"auto\"").any_bits();
        /// How GPUs of one host sum through peer access during backward: copy engines move all values
        /// (engines), a kernel reads them and copy engines move the sums (copies), one kernel does both
        /// (kernel), or NCCL sums without peer access (off). The bits are the same.
        peer_access: Option<PeerMethod> = choice!(
            Option<PeerMethod>,
            [Some(PeerMethod::Engines), Some(PeerMethod::Copies), Some(PeerMethod::Kernel), None],
            way_name
        ).default("\"kernel\"").any_bits().renamed("parallel.peers", "");
        /// Number of thread blocks of the kernel that reads other GPUs' memory. It occupies as many
        /// multiprocessors.
        peer_blocks: u32 = Row::small(1, 1024).default("16").any_bits();
        /// Number of ranks of one process that share a GPU, each with its own allocator, streams and
        /// workspaces. A configuration for several GPUs can so run on one; all ranks of the run must fit. 1:
        /// one GPU per rank. No effect on the CPU. The bits are the same.
        ranks_per_device: usize = Row::count(1, MOST_RANKS_PER_DEVICE).default("1").any_bits();
        /// Seconds a rank waits for another before it fails.
        timeout_seconds: u64 = Row::integer(1, 1_000_000_000).default("60").any_bits();
    }
}

const fn way_name(way: Option<PeerMethod>) -> &'static str {
    match way {
        Some(way) => way.name(),
        None => "off",
    }
}

impl Parallel {
    /// Returns the grid of ranks.
    #[must_use]
    pub fn grid(&self) -> GridShape {
        GridShape::from_sizes(|axis| match axis {
            Axis::Data => self.data,
            Axis::Pipeline => self.pipeline,
            Axis::Context => self.context,
            Axis::Tensor => self.tensor,
        })
    }

    /// Sets the keys of all axes. If `shard` does not divide the new number of ranks, all ranks share state.
    pub fn set_grid(&mut self, grid: GridShape) {
        for (axis, size) in grid.axes() {
            match axis {
                Axis::Data => self.data = size,
                Axis::Pipeline => self.pipeline = size,
                Axis::Context => self.context = size,
                Axis::Tensor => self.tensor = size,
            }
        }
        if self.shard > 0 && !self.replicas().is_multiple_of(self.shard) {
            self.shard = 0;
        }
    }

    /// Returns the number of tensor lanes in all, and of each rank.
    #[must_use]
    pub fn layer_shards(&self) -> Shards {
        Shards { all: self.tensor_lanes, here: self.tensor_lanes / self.tensor.max(1) }
    }

    /// Returns whether context ranks also shard state, as data-parallel ranks do.
    fn joins_context(&self) -> bool {
        self.context > 1 && parallel::data::shards_optimizer(self.zero_stage)
    }

    /// Returns the number of parts in which a micro-batch's gradient is summed over context ranks; 1 if they
    /// do not share state.
    #[must_use]
    pub fn gradient_parts(&self) -> usize {
        if self.joins_context() { self.context } else { 1 }
    }

    /// Returns the axes along which ranks hold the same parameters and may share state.
    #[must_use]
    pub fn replica_axes(&self) -> &'static [Axis] {
        if self.joins_context() { &[Axis::Data, Axis::Context] } else { &[Axis::Data] }
    }

    /// Returns the number of ranks that hold the same parameters and may share state.
    #[must_use]
    pub fn replicas(&self) -> usize {
        self.data * self.gradient_parts()
    }

    /// Returns the effective ZeRO stage. With context ranks that share state, stage 1 becomes 2, because they
    /// sum gradients in shards.
    #[must_use]
    pub fn sharding_stage(&self) -> u32 {
        if self.joins_context() { self.zero_stage.max(2) } else { self.zero_stage }
    }

    /// Returns the key that sets the number of ranks along an axis.
    #[must_use]
    pub fn axis_key(axis: Axis) -> String {
        format!("parallel.{}", axis.name())
    }

    /// Formats the grid as `parallel.data = 2 × parallel.pipeline = 4, that is 8 ranks`.
    #[must_use]
    pub fn grid_in_words(&self) -> String {
        let sizes = self.grid().axes().map(|(axis, size)| format!("{} = {size}", Self::axis_key(axis)));
        let sizes: Vec<_> = sizes.collect();
        format!("{}, that is {} ranks", sizes.join(" × "), self.grid().world_size())
    }

    /// Returns whether all ranks share one GPU, if they compute on GPUs.
    #[must_use]
    pub fn shares_gpu(&self) -> bool {
        self.ranks_per_device > 1 && self.grid().world_size() > 1
    }

    /// Returns whether data-parallel ranks shard the optimizer state.
    #[must_use]
    pub fn shards_optimizer(&self) -> bool {
        parallel::data::shards_optimizer(self.zero_stage)
    }

    /// Returns the number of ranks among which state is sharded, if it is.
    #[must_use]
    pub fn owners(&self) -> usize {
        let in_groups = parallel::data::shards_gradients(self.sharding_stage()) && self.shard > 0;
        let all = self.replicas();
        if in_groups && all.is_multiple_of(self.shard) { self.shard } else { all }
    }

    /// Returns whether data-parallel ranks sum gradients in shards, and so run lanes in turn.
    #[must_use]
    pub fn shards_gradients(&self) -> bool {
        self.owners() > 1 && parallel::data::shards_gradients(self.sharding_stage())
    }

    /// Returns whether data-parallel ranks shard the weights.
    #[must_use]
    pub fn shards_weights(&self) -> bool {
        self.owners() > 1 && parallel::data::shards_weights(self.zero_stage)
    }
}
