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

/// Most ranks that share a GPU, whose kernel for sums has so many operands.
const MOST_RANKS_PER_DEVICE: u64 = 64;

section! {
    /// `[parallel]`: how the work is distributed over ranks.
    pub struct Parallel = "parallel" {
        /// Ranks that share the micro-batches: any number up to `lanes`. Each runs as many lanes, or one
        /// more.
        data: usize = Row::count(1, 1 << 20).default("1").any_bits();
        /// Ranks that share the layers.
        pipeline: usize = Row::count(1, MOST_LAYERS).default("1").any_bits();
        /// Ranks that share each layer: they hold parts of its weights, divide attention's heads, the columns
        /// of feed-forward layers and the vocabulary, and each keeps a part of the rows between layers. They
        /// are neighbours, best on one host. A number that divides `tensor_lanes`.
        tensor: usize = Row::count(1, 1 << 10).default("1").any_bits();
        /// Parts of each layer over which sums are defined: each part is computed by itself, in the same way
        /// on any number of ranks, and a fixed tree adds the results in f32.
        tensor_lanes: usize = Row::count(1, 1 << 10)
            .derived("as many as `tensor`", |raw| Ok(raw.integer(Parallel::tensor)?.into()));
        /// Ranks that share each sequence: each computes some of its pieces, and keys and values travel
        /// between them. Half of `context_lanes` is a multiple of a number above 1.
        context: usize = Row::count(1, 1 << 10).default("1").any_bits();
        /// Pieces of each sequence over which sums are defined: a power of two. Each piece is computed by
        /// itself, in the same way on any number of ranks, and a fixed tree adds gradients in f32.
        context_lanes: usize = Row::count(1, 1 << 11)
            .derived("twice `context`, or 1 if that is 1", |raw| {
                let ranks = raw.integer(Parallel::context)?;
                Ok(if ranks > 1 { 2 * ranks } else { 1 }.into())
            });
        /// Gradient sums that a fixed tree adds: any number that divides the micro-batches of a step.
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
        /// The order of a pipeline's passes; the bits are the same. On one rank each micro-batch ends before
        /// the next begins.
        schedule: ScheduleKind = choice!(ScheduleKind, ScheduleKind::ALL).default("\"1f1b\"").any_bits();
        /// Stages of each rank.
        chunks: usize = Row::count(1, MOST_LAYERS)
            .default("2")
            .only(Parallel::schedule, &["interleaved"])
            .any_bits()
            .finish(|count, raw| match raw.text(Parallel::schedule)?.as_str() {
                "interleaved" => Ok(count),
                _ => Ok(1),
            });
        /// The partition of the layers over a pipeline's stages: the one whose slowest stage is fastest, the
        /// one whose largest peak is lowest, or the number of layers in each stage.
        partition: PartitionPolicy = Row::new(
            Takes::ChoiceOrIntegers(PartitionPolicy::NAMES, 1, MOST_LAYERS),
            PartitionPolicy::read,
            PartitionPolicy::value,
        ).default("\"fastest\"").any_bits().renamed("parallel.division", "");
        /// A file of times that `plimsoll plan --profile` wrote, for choosing the partition, relative to the
        /// configuration; without one, the partition follows counted FLOPs and bytes.
        profile: Option<PathBuf> = Row::new(Takes::Text, read_path, path_value)
            .default("\"\"")
            .only(Parallel::partition, &["fastest"])
            .any_bits()
            .local()
            .finish(|path, raw| paths::file(path, raw, Parallel::profile, "file of times"));
        /// The order in which gradients are added over ranks: a fixed tree, with the same bits on every grid,
        /// or NCCL's, with the same bits on the same grid.
        reduction: Reduction = choice!(Reduction, Reduction::ALL).default("\"tree\"");
        /// State of which each data-parallel rank keeps only its shard (ZeRO): 1: the optimizer's, 2: also
        /// gradients, 3: also weights, which are gathered before their use. The bits are the same.
        zero_stage: u32 = Row::small(0, 3).default("0").any_bits()
            .renamed("parallel.shard_optimizer", ": true is 1, false is 0");
        /// Neighbouring data-parallel ranks that share state from ZeRO stage 2 on: a number that divides
        /// `data`. Groups of so many ranks have copies of it. 0: all ranks share it.
        shard: usize = Row::count(0, 1 << 20).default("0").any_bits();
        /// Units of weights (embedding, blocks, head) that are gathered ahead of their use; the bits are the
        /// same.
        prefetch: usize = Row::count(0, 64).default("1").any_bits();
        /// Bytes of gradients that are reduced together.
        bucket_bytes: u64 = Row::integer(512, 1 << 40).default("67108864").any_bits();
        /// Time at which ranks sum gradients: as buckets fill (on), from late in backward on, or after
        /// backward (off). auto: late where GPUs of one host sum through peer access, or after backward if
        /// the optimizer state is sharded there too; elsewhere as buckets fill. The bits are the same.
        overlap: Overlap = choice!(Overlap, Overlap::ALL).default("\"auto\"").any_bits();
        /// How GPUs of one host sum through peer access during backward: copy engines move all values
        /// (engines), a kernel reads them and copy engines move the sums (copies), one kernel does both
        /// (kernel), or NCCL without peer access (off); the bits are the same.
        peer_access: Option<PeerMethod> = choice!(
            Option<PeerMethod>,
            [Some(PeerMethod::Engines), Some(PeerMethod::Copies), Some(PeerMethod::Kernel), None],
            way_name
        ).default("\"kernel\"").any_bits().renamed("parallel.peers", "");
        /// Thread blocks of the kernel that reads other GPUs' memory: the multiprocessors that it takes from
        /// other work.
        peer_blocks: u32 = Row::small(1, 1024).default("16").any_bits();
        /// Ranks of one process that share a GPU, each with its own allocator, streams and workspaces, so
        /// that a configuration for several GPUs runs on one; all ranks of the run must fit in. 1: a GPU for
        /// each rank. No effect on the CPU; the bits are the same.
        ranks_per_device: usize = Row::count(1, MOST_RANKS_PER_DEVICE).default("1").any_bits();
        /// Seconds that a rank waits for another before it gives up.
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
    /// The grid of ranks.
    #[must_use]
    pub fn grid(&self) -> GridShape {
        GridShape::of(|axis| match axis {
            Axis::Data => self.data,
            Axis::Pipeline => self.pipeline,
            Axis::Context => self.context,
            Axis::Tensor => self.tensor,
        })
    }

    /// Sets the keys of all axes. All ranks share state if `shard` does not divide them into groups.
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

    /// The lanes that layers are divided in, and those of a rank.
    #[must_use]
    pub fn layer_shards(&self) -> Shards {
        Shards { all: self.tensor_lanes, here: self.tensor_lanes / self.tensor.max(1) }
    }

    /// Returns whether ranks that share sequences also share state, as data-parallel ranks do.
    fn joins_context(&self) -> bool {
        self.context > 1 && parallel::data::shards_optimizer(self.zero_stage)
    }

    /// Number of ranks over which the gradient of a micro-batch is summed like those of micro-batches.
    #[must_use]
    pub fn gradient_parts(&self) -> usize {
        if self.joins_context() { self.context } else { 1 }
    }

    /// The axes along which ranks hold the same parameters and may share state.
    #[must_use]
    pub fn replica_axes(&self) -> &'static [Axis] {
        if self.joins_context() { &[Axis::Data, Axis::Context] } else { &[Axis::Data] }
    }

    /// Number of ranks that hold the same parameters and may share state.
    #[must_use]
    pub fn replicas(&self) -> usize {
        self.data * self.gradient_parts()
    }

    /// The ZeRO stage at which state is sharded: ranks that share sequences sum gradients in shards from
    /// stage 1 on.
    #[must_use]
    pub fn sharding_stage(&self) -> u32 {
        if self.joins_context() { self.zero_stage.max(2) } else { self.zero_stage }
    }

    /// Returns the path of the key with the number of ranks along an axis.
    #[must_use]
    pub fn axis_key(axis: Axis) -> String {
        format!("parallel.{}", axis.name())
    }

    /// The grid in words, as in `parallel.data = 2 × parallel.pipeline = 4, that is 8 ranks`.
    #[must_use]
    pub fn grid_in_words(&self) -> String {
        let sizes = self.grid().axes().map(|(axis, size)| format!("{} = {size}", Self::axis_key(axis)));
        let sizes: Vec<_> = sizes.collect();
        format!("{}, that is {} ranks", sizes.join(" × "), self.grid().world_size())
    }

    /// Returns whether all ranks share a GPU, where they compute on GPUs.
    #[must_use]
    pub fn shares_gpu(&self) -> bool {
        self.ranks_per_device > 1 && self.grid().world_size() > 1
    }

    /// Returns whether each data-parallel rank keeps only its shard of the optimizer state.
    #[must_use]
    pub fn shards_optimizer(&self) -> bool {
        parallel::data::shards_optimizer(self.zero_stage)
    }

    /// Number of ranks that share state, if that is sharded.
    #[must_use]
    pub fn owners(&self) -> usize {
        let in_groups = parallel::data::shards_gradients(self.sharding_stage()) && self.shard > 0;
        let all = self.replicas();
        if in_groups && all.is_multiple_of(self.shard) { self.shard } else { all }
    }

    /// Returns whether several data-parallel ranks sum gradients in shards, and so run lanes in turn.
    #[must_use]
    pub fn shards_gradients(&self) -> bool {
        self.owners() > 1 && parallel::data::shards_gradients(self.sharding_stage())
    }

    /// Returns whether each of several data-parallel ranks keeps only its shard of the weights.
    #[must_use]
    pub fn shards_weights(&self) -> bool {
        self.owners() > 1 && parallel::data::shards_weights(self.zero_stage)
    }
}
