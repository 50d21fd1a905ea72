//! Ways of sharing state among the data-parallel ranks of a layout.

use collective::{Axis, GridShape};
use config::{Parallel, RunConfig};

/// State of which data-parallel ranks keep shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shards {
    pub(super) zero_stage: u32,
    /// Data-parallel ranks that share state.
    pub(super) owners: usize,
    /// `parallel.lanes`.
    pub(super) lanes: usize,
}

impl Shards {
    /// Returns the ways that the ranks of `grid` may share state in a step of `micro_batches`, with few lanes
    /// and, where gradients are sharded, with lanes of one micro-batch, which need no whole gradients. Ranks
    /// that share sequences share state with such lanes only, and in one group.
    pub(super) fn all(
        config: &RunConfig,
        grid: &GridShape,
        micro_batches: usize,
        gpus_per_host: usize,
    ) -> Vec<Self> {
        let [data, context] = [Axis::Data, Axis::Context].map(|axis| grid.size(axis));
        let few = lanes(config.parallel.lanes, micro_batches, data);
        let whole = |zero_stage: u32| Shards { zero_stage, owners: data * context, lanes: few };
        if data * context == 1 {
            return vec![whole(0)];
        }
        if context > 1 {
            let sharded = |zero_stage| Shards { lanes: micro_batches, ..whole(zero_stage) };
            return [whole(0)].into_iter().chain((1..=3).map(sharded)).collect();
        }
        let mut all = vec![whole(0), whole(1)];
        for owners in groups(config, data, gpus_per_host) {
            for zero_stage in [2, 3] {
                all.push(Shards { owners, ..whole(zero_stage) });
                all.extend((few < micro_batches).then_some(Shards {
                    zero_stage,
                    owners,
                    lanes: micro_batches,
                }));
            }
        }
        all
    }

    /// Returns whether a rank keeps as few parts of state as `data` ranks allow in a step of
    /// `micro_batches`.
    pub(super) fn are_smallest(self, data: usize, micro_batches: usize) -> bool {
        data == 1 || self == Self::smallest(data, micro_batches)
    }

    /// The way in which a rank keeps least.
    pub(super) fn smallest(data: usize, micro_batches: usize) -> Self {
        Shards { zero_stage: 3, owners: data, lanes: micro_batches }
    }

    /// Returns whether ranks keep no more of any state than in another way.
    pub(super) fn keep_no_more_than(self, other: Self) -> bool {
        self.zero_stage >= other.zero_stage && self.owners >= other.owners && self.lanes >= other.lanes
    }

    /// Returns the ZeRO stage, with the size of groups if `data` ranks are several; `None` at stage 0.
    pub(super) fn in_words(self, data: usize) -> Option<String> {
        let Shards { zero_stage, owners, .. } = self;
        let groups = if owners < data { format!(" in groups of {owners}") } else { String::new() };
        (zero_stage > 0).then(|| format!("{zero_stage}{groups}"))
    }

    /// Returns the keys that give a configuration these shards on `data` ranks; `names_lanes`: also the lanes
    /// that it has.
    pub(super) fn sets(self, config: &RunConfig, data: usize, names_lanes: bool) -> Vec<String> {
        let Shards { zero_stage, owners, lanes } = self;
        let parallel = &config.parallel;
        let shard = if owners < data { owners } else { 0 };
        let keys = [
            (Parallel::lanes, lanes, names_lanes || lanes != parallel.lanes),
            (Parallel::zero_stage, zero_stage as usize, zero_stage != parallel.zero_stage),
            (Parallel::shard, shard, shard != parallel.shard),
        ];
        let keys = keys.into_iter().filter(|(.., is_set)| *is_set);
        keys.map(|(key, value, _)| format!("{key}={value}")).collect()
    }
}

/// Returns the sizes of groups of ranks that share state, the smallest first: those of a host, doubled, the
/// size in the configuration, and all ranks.
fn groups(config: &RunConfig, data: usize, gpus_per_host: usize) -> Vec<usize> {
    let hosts = std::iter::successors(Some(gpus_per_host), |size| size.checked_mul(2));
    let hosts = hosts.take_while(|size| *size < data);
    let mut sizes: Vec<_> = hosts.chain([config.parallel.shard, data]).collect();
    sizes.retain(|size| *size > 1 && data.is_multiple_of(*size));
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Returns the lanes of a step: those of the configuration, and with them the bits, if possible; else the
/// default if ranks have equally many of them, else one for each rank, or the fewest more of which some ranks
/// have two.
fn lanes(current: usize, micro_batches: usize, data: usize) -> usize {
    let divides = |lanes: &usize| micro_batches.is_multiple_of(*lanes);
    let default = 1_usize << micro_batches.trailing_zeros().min(3);
    if current >= data && divides(&current) {
        return current;
    }
    match default.is_multiple_of(data) {
        true => default,
        false => (data..=micro_batches).find(divides).unwrap_or(micro_batches),
    }
}
