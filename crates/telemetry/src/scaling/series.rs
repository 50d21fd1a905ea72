//! Series: runs that differ only in the number of ranks.

use super::rounds::Rounds;
use super::{Scaling, ScalingRun};

/// Runs in ascending order of their numbers of ranks, each number once.
#[derive(Clone, Debug)]
pub(super) struct Series<'a> {
    /// The median round of each run.
    pub(super) runs: Vec<&'a ScalingRun>,
    pub(super) rounds: Vec<Rounds<'a>>,
}

/// Properties that comparable runs share: model, device, device model, dtype, micro-batch size, kind of
/// ranks.
pub(super) type Setting<'a> = (&'a str, &'a str, &'a str, &'a str, usize, &'a str);

pub(super) fn setting(run: &ScalingRun) -> Setting<'_> {
    (&run.model, &run.device, &run.device_model, &run.precision, run.micro_batch, &run.ranks_are)
}

/// Groups `runs` into series, in the order of their first runs.
pub(super) fn series<'a>(runs: &'a [ScalingRun]) -> Vec<Series<'a>> {
    let mut all: Vec<Vec<Rounds<'a>>> = Vec::new();
    for run in runs.iter().filter(|run| run.scaling != Scaling::Alone) {
        let kind = |run: &'_ ScalingRun| (run.scaling, run.reduction.clone(), run.shard_optimizer);
        // A strong series has one global batch, a weak series one batch per rank.
        let batch = |run: &ScalingRun| match run.scaling {
            Scaling::Strong => run.micro_batches,
            Scaling::Weak | Scaling::Alone => run.micro_batches_of_each(),
        };
        let same = |other: &ScalingRun| {
            setting(other) == setting(run) && kind(other) == kind(run) && batch(other) == batch(run)
        };
        match all.iter_mut().find(|rounds| same(rounds[0].median())) {
            None => all.push(vec![Rounds::from_run(run)]),
            Some(rounds) => {
                let index = rounds.partition_point(|other| other.median().ranks < run.ranks);
                match rounds.get_mut(index).filter(|there| there.median().ranks == run.ranks) {
                    Some(there) => there.add(run),
                    None => rounds.insert(index, Rounds::from_run(run)),
                }
            }
        }
    }
    let to_series =
        |rounds: Vec<Rounds<'a>>| Series { runs: rounds.iter().map(Rounds::median).collect(), rounds };
    all.into_iter().map(to_series).collect()
}

/// Returns whether all runs have the same setting.
pub(super) fn alike(runs: &[ScalingRun]) -> bool {
    runs.iter().all(|run| setting(run) == setting(&runs[0]))
}

/// Formats a run's setting: model, dtype, micro-batch size, device.
pub(super) fn describe(run: &ScalingRun) -> String {
    format!("{}, {}, micro-batch {} on {}", run.model, run.precision, run.micro_batch, run.device_model)
}

impl Series<'_> {
    /// Returns the name of the series, unique among series of the same setting.
    pub(super) fn name(&self) -> String {
        name(self.runs[0])
    }

    /// Returns the throughput per rank of `run` relative to the series' smallest number of ranks.
    pub(super) fn efficiency(&self, run: &ScalingRun) -> f64 {
        let each = |run: &ScalingRun| run.tokens_per_second() / run.ranks as f64;
        each(run) / each(self.runs[0])
    }

    /// Returns the number of ranks that efficiency is relative to.
    pub(super) fn base_ranks(&self) -> usize {
        self.runs[0].ranks
    }
}

pub(super) fn name(run: &ScalingRun) -> String {
    format!("{}, {}", run.scaling.name(), how(run))
}

/// Returns the reduction of gradients, as printed in tables.
pub(super) fn how(run: &ScalingRun) -> String {
    match run.scaling {
        Scaling::Alone => "–".to_owned(),
        _ => format!("{}{}", run.reduction, if run.shard_optimizer { ", sharded" } else { "" }),
    }
}
