//! Runs that differ in the number of ranks alone.

use super::rounds::Rounds;
use super::{Scaling, ScalingRun};

/// Runs of one kind by rising number of ranks, each number once.
#[derive(Clone, Debug)]
pub(super) struct Series<'a> {
    /// Of each, the median round.
    pub(super) runs: Vec<&'a ScalingRun>,
    /// The same runs, with all of their rounds.
    pub(super) rounds: Vec<Rounds<'a>>,
}

/// What runs have in common that can be compared.
pub(super) type Setting<'a> = (&'a str, &'a str, &'a str, &'a str, usize, &'a str);

pub(super) fn setting(run: &ScalingRun) -> Setting<'_> {
    (&run.model, &run.device, &run.device_model, &run.precision, run.micro_batch, &run.ranks_are)
}

/// The series among `runs`, in the order in which they begin.
pub(super) fn series<'a>(runs: &'a [ScalingRun]) -> Vec<Series<'a>> {
    let mut all: Vec<Vec<Rounds<'a>>> = Vec::new();
    for run in runs.iter().filter(|run| run.scaling != Scaling::Alone) {
        let kind = |run: &'_ ScalingRun| (run.scaling, run.reduction.clone(), run.shard_optimizer);
        // A strong series has one global batch, a weak one a batch for each rank.
        let batch = |run: &ScalingRun| match run.scaling {
            Scaling::Strong => run.micro_batches,
            Scaling::Weak | Scaling::Alone => run.micro_batches_of_each(),
        };
        let same = |other: &ScalingRun| {
            setting(other) == setting(run) && kind(other) == kind(run) && batch(other) == batch(run)
        };
        match all.iter_mut().find(|rounds| same(rounds[0].median())) {
            None => all.push(vec![Rounds::of(run)]),
            Some(rounds) => {
                let place = rounds.partition_point(|other| other.median().ranks < run.ranks);
                match rounds.get_mut(place).filter(|there| there.median().ranks == run.ranks) {
                    Some(there) => there.add(run),
                    None => rounds.insert(place, Rounds::of(run)),
                }
            }
        }
    }
    let of = |rounds: Vec<Rounds<'a>>| Series { runs: rounds.iter().map(Rounds::median).collect(), rounds };
    all.into_iter().map(of).collect()
}

/// Whether all runs are of one model, device, precision and micro-batch.
pub(super) fn alike(runs: &[ScalingRun]) -> bool {
    runs.iter().all(|run| setting(run) == setting(&runs[0]))
}

/// What all runs have in common, or one of them has: model, precision, micro-batch, device.
pub(super) fn describe(run: &ScalingRun) -> String {
    format!("{}, {}, micro-batch {} on {}", run.model, run.precision, run.micro_batch, run.device_model)
}

impl Series<'_> {
    /// What names it among others of the same setting.
    pub(super) fn name(&self) -> String {
        name(self.runs[0])
    }

    /// Tokens a second and rank over those of the smallest number of ranks.
    pub(super) fn efficiency(&self, run: &ScalingRun) -> f64 {
        let each = |run: &ScalingRun| run.tokens_per_second() / run.ranks as f64;
        each(run) / each(self.runs[0])
    }

    /// How many ranks the efficiency is measured against.
    pub(super) fn against(&self) -> usize {
        self.runs[0].ranks
    }
}

/// What names a run's series.
pub(super) fn name(run: &ScalingRun) -> String {
    format!("{}, {}", run.scaling.name(), how(run))
}

/// How gradients were reduced.
pub(super) fn how(run: &ScalingRun) -> String {
    match run.scaling {
        Scaling::Alone => "–".to_owned(),
        _ => format!("{}{}", run.reduction, if run.shard_optimizer { ", sharded" } else { "" }),
    }
}
