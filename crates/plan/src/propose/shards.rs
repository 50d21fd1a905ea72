//! Ways of sharding state over the data-parallel ranks of a layout.

use collective::{Axis, GridShape};
use config::{Parallel, RunConfig};

/// How state is sharded over data-parallel ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shards {
    pub(super) zero_stage: u32,
    /// Number of ranks over which state is sharded.
    pub(super) owners: usize,
    /// `parallel.lanes`.
    pub(super) lanes: usize,
}

impl Shards {
    /// Returns the ways to shard state over the ranks of `grid` in a step of `micro_batches`. They use few
    /// lanes; if gradients are sharded, also lanes of one micro-batch, which need no whole gradients.
    /// Context-parallel ranks use only such lanes, in a single group.
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

    /// Returns whether ranks keep as little state as possible with `data` ranks and `micro_batches` per step.
    pub(super) fn are_smallest(self, data: usize, micro_batches: usize) -> bool {
        data == 1 || self == Self::smallest(data, micro_batches)
    }

    /// Returns the sharding with the least state per rank.
    pub(super) fn smallest(data: usize, micro_batches: usize) -> Self {
        Shards { zero_stage: 3, owners: data, lanes: micro_batches }
    }

    /// Returns whether ranks keep no more of any state than with `other`.
    pub(super) fn keep_no_more_than(self, other: Self) -> bool {
        self.zero_stage >= other.zero_stage && self.owners >= other.owners && self.lanes >= other.lanes
    }

    /// Describes the ZeRO stage and, if smaller than `data`, the group size; `None` at stage 0.
    pub(super) fn in_words(self, data: usize) -> Option<String> {
        let Shards { zero_stage, owners, .. } = self;
        let groups = if owners < data { format!(" in groups of {owners}") } else { String::new() };
        (zero_stage > 0).then(|| format!("{zero_stage}{groups}"))
    }

    /// Returns the keys that configure this sharding on `data` ranks. With `names_lanes`, lanes are included
    /// even if they equal the configuration.
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

/// Returns the sharding group sizes to try, the smallest first: a host's GPUs, their doublings, the
/// configured size, and all ranks.
fn groups(config: &RunConfig, data: usize, gpus_per_host: usize) -> Vec<usize> {
    let hosts = std::iter::successors(Some(gpus_per_host), |size| size.checked_mul(2));
    let hosts = hosts.take_while(|size| *size < data);
    let mut sizes: Vec<_> = hosts.chain([config.parallel.shard, data]).collect();
    sizes.retain(|size| *size > 1 && data.is_multiple_of(*size));
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Returns the number of lanes for a step: the configured number, which keeps the bits, if possible; else the
/// default if ranks have equally many lanes; else one for each rank, or the smallest larger number that
/// divides the micro-batches.
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
