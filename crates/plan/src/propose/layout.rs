//! Layouts of a step over ranks and micro-batches.

use collective::{Axis, GridShape};
use config::{Parallel, RecomputePolicy, RunConfig};
use parallel::pipeline::ScheduleKind;

/// A distribution of a step's work over ranks and micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) grid: GridShape,
    pub(super) schedule: ScheduleKind,
    pub(super) sharded: bool,
    pub(super) recomputed: bool,
    pub(super) micro_batch: usize,
    pub(super) micro_batches: usize,
}

impl Layout {
    /// Returns whether the layout differs from another only by larger micro-batches, and so needs no less
    /// memory.
    pub(super) fn needs_no_less_than(&self, other: &Layout) -> bool {
        let alike = Layout { micro_batch: other.micro_batch, micro_batches: other.micro_batches, ..*self };
        alike == *other && self.micro_batch >= other.micro_batch
    }

    /// Returns whether the layout has as many actions as another of the same grid and schedule, and as many
    /// kinds of ranks.
    pub(super) fn takes_no_less_planning_than(&self, other: &Layout) -> bool {
        (self.grid, self.schedule) == (other.grid, other.schedule)
            && self.micro_batches >= other.micro_batches
            && self.recomputed >= other.recomputed
            && self.sharded >= other.sharded
    }

    /// Returns whether the layout saves memory in every way in which it differs from another of the same grid
    /// and schedule.
    pub(super) fn probably_needs_less(&self, other: &Layout) -> bool {
        (self.grid, self.schedule) == (other.grid, other.schedule)
            && self.micro_batch <= other.micro_batch
            && self.recomputed >= other.recomputed
            && self.sharded >= other.sharded
    }

    /// Returns all layouts of the configuration's step over `ranks` ranks.
    pub(super) fn all(config: &RunConfig, ranks: usize) -> Vec<Self> {
        let samples = config.train.global_batch_size;
        let powers = |number: usize| (0..=number.trailing_zeros()).map(|power| 1_usize << power);
        // Halve the size and double the number, repeatedly: sizes suited to the kernels remain so.
        let smaller =
            powers(config.train.micro_batch_size).skip(1).map(|by| config.train.micro_batch_size / by);
        let larger = powers(config.train.micro_batches()).map(|by| config.train.micro_batch_size * by);
        let sizes: Vec<_> = smaller.chain(larger).collect();
        let mut all = Vec::new();
        let with_replicas = |data: usize| {
            config.parallel.grid().with_size(Axis::Data, data).filled_along(Axis::Pipeline, ranks)
        };
        for grid in (1..=ranks).filter(|data| ranks.is_multiple_of(*data)).filter_map(with_replicas) {
            let data = grid.size(Axis::Data);
            for micro_batch in sizes.iter().copied().filter(|size| samples / size >= data) {
                for schedule in schedules(grid.size(Axis::Pipeline)) {
                    let shard = [false, true].into_iter().filter(|sharded| !sharded || data > 1);
                    for (sharded, recomputed) in shard.flat_map(|sharded| [(sharded, false), (sharded, true)])
                    {
                        let micro_batches = samples / micro_batch;
                        all.push(Layout { grid, schedule, sharded, recomputed, micro_batch, micro_batches });
                    }
                }
            }
        }
        all
    }

    /// Returns the keys that give a configuration this layout; with `names_grid` those of the grid and the
    /// lanes also where nothing changes.
    pub(super) fn sets(&self, config: &RunConfig, names_grid: bool) -> Vec<String> {
        let Layout { grid, micro_batch, micro_batches, .. } = *self;
        let data = grid.size(Axis::Data);
        let (parallel, train, memory) = (&config.parallel, &config.train, &config.memory);
        // The number of lanes, and with it the bits, is kept if possible.
        let current = parallel.lanes;
        let keeps = micro_batches.is_multiple_of(current) && current >= data;
        let lanes = if keeps { current } else { lanes(micro_batches, data) };
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
        let sets = [
            scheduled.then(|| format!("parallel.schedule={}", self.schedule.name())),
            named(Parallel::lanes, lanes, current),
            (self.sharded != parallel.shards_optimizer())
                .then(|| format!("parallel.zero_stage={}", u8::from(self.sharded))),
            recompute,
            all_layers.then(|| "memory.recompute_layers=0".to_owned()),
            number("train.micro_batch_size", micro_batch, train.micro_batch_size),
        ];
        axes.chain(sets.into_iter().flatten()).collect()
    }
}

/// Returns the lanes of a layout that cannot keep the configuration's: the default if ranks have equally many
/// of them, else one for each rank, or the fewest more of which some ranks have two.
fn lanes(micro_batches: usize, data: usize) -> usize {
    let default = 1_usize << micro_batches.trailing_zeros().min(3);
    let divides = |lanes: &usize| micro_batches.is_multiple_of(*lanes);
    match usize::is_multiple_of(default, data) {
        true => default,
        false => (data..=micro_batches).find(divides).unwrap_or(micro_batches),
    }
}

/// Schedules to try for a pipeline; one for a pipeline of one rank, where all are equal.
fn schedules(pipeline: usize) -> Vec<ScheduleKind> {
    match pipeline {
        1 => vec![ScheduleKind::OneForwardOneBackward],
        _ => ScheduleKind::ALL.to_vec(),
    }
}
