//! Layouts: how a step is divided over ranks and micro-batches.

use collective::{Axis, GridShape};
use config::{Parallel, RecomputePolicy, RunConfig};
use parallel::pipeline::ScheduleKind;

use super::shards::Shards;

/// A division of a step's work over ranks and micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) grid: GridShape,
    pub(super) schedule: ScheduleKind,
    pub(super) shards: Shards,
    pub(super) recomputed: bool,
    /// Whether optimizer state and weights are offloaded, as configured.
    pub(super) offloaded: [bool; 2],
    pub(super) micro_batch: usize,
    pub(super) micro_batches: usize,
}

impl Layout {
    /// Returns the number of ranks that may share state, along the data and context axes.
    fn data(&self) -> usize {
        self.grid.size_over(&[Axis::Data, Axis::Context])
    }

    /// Returns whether two layouts differ only in how state is sharded.
    pub(super) fn is_alike(&self, other: &Layout) -> bool {
        Layout { shards: other.shards, ..*self } == *other
    }

    /// Returns whether two layouts differ at most in the size of sharding groups.
    pub(super) fn has_groups_of_another_size(&self, other: &Layout) -> bool {
        let shards = Shards { owners: other.shards.owners, ..self.shards };
        Layout { shards, ..*self } == *other
    }

    /// Returns the layout with the most sharded state that is otherwise equal.
    pub(super) fn smallest(&self) -> Self {
        match self.data() {
            1 => *self,
            data => Layout { shards: Shards::smallest(data, self.micro_batches), ..*self },
        }
    }

    /// Returns whether the layout certainly needs at least as much memory as `other`: grid and schedule are
    /// equal, micro-batches are no smaller, it recomputes no more, and ranks keep no less state.
    pub(super) fn needs_no_less_than(&self, other: &Layout) -> bool {
        let shards_less = other.shards.are_smallest(other.data(), other.micro_batches)
            || (self.shards.zero_stage, self.shards.owners) == (other.shards.zero_stage, other.shards.owners)
                && (self.shards.lanes == self.micro_batches) == (other.shards.lanes == other.micro_batches);
        (self.grid, self.schedule) == (other.grid, other.schedule)
            && self.micro_batch >= other.micro_batch
            && self.recomputed <= other.recomputed
            && shards_less
    }

    /// Returns whether planning the layout takes at least as long as planning `other`: grid and schedule are
    /// equal, and it has no fewer actions and roles.
    pub(super) fn takes_no_less_planning_than(&self, other: &Layout) -> bool {
        (self.grid, self.schedule) == (other.grid, other.schedule)
            && self.micro_batches >= other.micro_batches
            && self.recomputed >= other.recomputed
            && self.shards.zero_stage >= other.shards.zero_stage
    }

    /// Returns whether the layout probably needs less memory than `other`: grid and schedule are equal, and
    /// every difference saves memory.
    pub(super) fn probably_needs_less(&self, other: &Layout) -> bool {
        (self.grid, self.schedule) == (other.grid, other.schedule)
            && self.micro_batch <= other.micro_batch
            && self.recomputed >= other.recomputed
            && self.shards.keep_no_more_than(other.shards)
    }

    /// Returns all layouts of a step over `ranks` ranks, with `gpus_per_host` on each host.
    pub(super) fn all(config: &RunConfig, ranks: usize, gpus_per_host: usize) -> Vec<Self> {
        let samples = config.train.global_batch_size;
        let powers = |number: usize| (0..=number.trailing_zeros()).map(|power| 1_usize << power);
        // Halve the size and double the number, repeatedly: sizes suited to the kernels remain so.
        let smaller =
            powers(config.train.micro_batch_size).skip(1).map(|by| config.train.micro_batch_size / by);
        let larger = powers(config.train.micro_batches()).map(|by| config.train.micro_batch_size * by);
        let sizes: Vec<_> = smaller.chain(larger).collect();
        let mut all = Vec::new();
        for grid in grids(config, ranks, gpus_per_host) {
            let data = grid.size(Axis::Data);
            for micro_batch in sizes.iter().copied().filter(|size| samples / size >= data) {
                for schedule in schedules(grid.size(Axis::Pipeline)) {
                    let micro_batches = samples / micro_batch;
                    let ways = Shards::all(config, &grid, micro_batches, gpus_per_host).into_iter();
                    all.extend(ways.flat_map(|shards| {
                        let layout = |recomputed| Layout {
                            grid,
                            schedule,
                            shards,
                            recomputed,
                            offloaded: [config.optim.offload, config.memory.offload_weights],
                            micro_batch,
                            micro_batches,
                        };
                        [false, true].map(layout)
                    }));
                }
            }
        }
        all
    }

    /// Returns the keys that configure this layout. With `names_grid`, grid and lanes are included even if
    /// they equal the configuration.
    pub(super) fn sets(&self, config: &RunConfig, names_grid: bool) -> Vec<String> {
        let Layout { grid, micro_batch, shards, .. } = *self;
        let parallel = &config.parallel;
        let train = &config.train;
        let memory = &config.memory;
        let number = |key: &str, new: usize, old: usize| (new != old).then(|| format!("{key}={new}"));
        let named =
            |key: &str, new: usize, old: usize| (names_grid || new != old).then(|| format!("{key}={new}"));
        // One rank needs no schedule.
        let scheduled = grid.size(Axis::Pipeline) > 1 && self.schedule != parallel.schedule;
        let recompute = if self.recomputed { RecomputePolicy::Block } else { RecomputePolicy::None };
        let recompute = (recompute != memory.recompute)
            .then(|| format!("memory.recompute={}", if self.recomputed { "block" } else { "none" }));
        let all_layers = memory.recompute_layers != 0 && (self.recomputed || recompute.is_some());
        let axes = grid.axes().zip(parallel.grid().axes());
        let axes = axes.filter_map(|((axis, new), (_, old))| named(&Parallel::axis_key(axis), new, old));
        let scheduled = scheduled.then(|| format!("parallel.schedule={}", self.schedule.name()));
        let sharded = shards.sets(config, self.data(), names_grid);
        let [lanes, pieces] =
            [tensor_lanes(config, grid.size(Axis::Tensor)), context_lanes(config, grid.size(Axis::Context))];
        let sets = [
            number(Parallel::tensor_lanes, lanes, parallel.tensor_lanes),
            number(Parallel::context_lanes, pieces, parallel.context_lanes),
            recompute,
            all_layers.then(|| "memory.recompute_layers=0".to_owned()),
            number("train.micro_batch_size", micro_batch, train.micro_batch_size),
        ];
        axes.chain(scheduled).chain(sharded).chain(sets.into_iter().flatten()).collect()
    }
}

/// Minimum tokens in a piece of a sequence; context parallelism is tried only for longer pieces.
const PIECE: usize = 4096;

/// Returns the grids of `ranks` ranks to try.
fn grids(config: &RunConfig, ranks: usize, gpus_per_host: usize) -> impl Iterator<Item = GridShape> {
    let whole = config.parallel.grid();
    let tensor = tensor_sizes(config, gpus_per_host);
    let context = context_sizes(config, gpus_per_host);
    let data = (1..=ranks).filter(move |data| ranks.is_multiple_of(*data));
    data.flat_map(move |data| {
        let shared = tensor.iter().flat_map(|tensor| context.iter().map(move |context| [*tensor, *context]));
        let grid = |[tensor, context]: [usize; 2]| {
            let grid = whole.with_size(Axis::Data, data).with_size(Axis::Tensor, tensor);
            grid.with_size(Axis::Context, context).filled_along(Axis::Pipeline, ranks)
        };
        shared.filter_map(grid).collect::<Vec<_>>()
    })
}

/// Returns the context-parallel sizes to try: the configured size, and sizes within a host that leave long
/// pieces.
fn context_sizes(config: &RunConfig, gpus_per_host: usize) -> Vec<usize> {
    let tokens = config.model.examples().units();
    let powers = std::iter::successors(Some(1), |size| Some(2 * size));
    let powers = powers.take_while(|size| *size <= gpus_per_host);
    let long = powers.filter(|size| *size == 1 || tokens / (2 * size) >= PIECE);
    let mut sizes: Vec<_> = long.chain([config.parallel.context]).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Returns the number of sequence pieces for `ranks` ranks: the configured number, which keeps the bits, if
/// the ranks can have equally many; else two for each rank.
fn context_lanes(config: &RunConfig, ranks: usize) -> usize {
    let pieces = config.parallel.context_lanes;
    let divides = ranks == 1 || pieces.is_multiple_of(2 * ranks);
    if divides { pieces } else { 2 * ranks }
}

/// Returns the tensor-parallel sizes to try: the configured size, and powers of two within a host.
fn tensor_sizes(config: &RunConfig, gpus_per_host: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(1), |size| Some(2 * size));
    let powers = powers.take_while(|size| *size <= gpus_per_host);
    let mut sizes: Vec<_> = powers.chain([config.parallel.tensor]).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Returns the number of tensor lanes for `ranks` ranks: the configured number, which keeps the bits, if the
/// ranks can have equally many; else one for each rank.
fn tensor_lanes(config: &RunConfig, ranks: usize) -> usize {
    let lanes = config.parallel.tensor_lanes;
    let each = lanes / ranks;
    let divides = lanes.is_multiple_of(ranks) && (ranks == 1 || each.is_power_of_two());
    if divides { lanes } else { ranks }
}

/// Returns the schedules to try for a pipeline; only one for a single stage, where all are equal.
fn schedules(pipeline: usize) -> Vec<ScheduleKind> {
    match pipeline {
        1 => vec![ScheduleKind::OneForwardOneBackward],
        _ => ScheduleKind::ALL.to_vec(),
    }
}
