//! Runs that differ in the number of ranks alone.

use super::{Run, Scaling};

/// Runs of one kind by rising number of ranks, each number once.
#[derive(Clone, Debug)]
pub(super) struct Series<'a> {
    pub(super) runs: Vec<&'a Run>,
}

/// What runs of a series have in common besides scaling and reduction.
type Setting<'a> = (&'a str, &'a str, &'a str, &'a str, usize, &'a str);

fn setting(run: &Run) -> Setting<'_> {
    (&run.model, &run.device, &run.device_model, &run.precision, run.micro_batch, &run.ranks_are)
}

/// The series among `runs`, in the order in which they begin. Of the same run measured twice the later counts.
pub(super) fn series(runs: &[Run]) -> Vec<Series<'_>> {
    let mut all: Vec<Series<'_>> = Vec::new();
    for run in runs {
        let kind = |run: &'_ Run| (run.scaling, run.reduction.clone(), run.shard_optimizer);
        // A strong series has one global batch, a weak one a batch for each rank.
        let batch = |run: &Run| match run.scaling {
            Scaling::Strong => run.micro_batches,
            Scaling::Weak => run.micro_batches / run.ranks.max(1),
        };
        let same = |other: &Run| {
            setting(other) == setting(run) && kind(other) == kind(run) && batch(other) == batch(run)
        };
        match all.iter_mut().find(|series| same(series.runs[0])) {
            None => all.push(Series { runs: vec![run] }),
            Some(series) => {
                series.runs.retain(|other| other.ranks != run.ranks);
                let place = series.runs.partition_point(|other| other.ranks < run.ranks);
                series.runs.insert(place, run);
            }
        }
    }
    all
}

/// Whether all runs are of one model, device, precision and micro-batch.
pub(super) fn alike(runs: &[Run]) -> bool {
    runs.iter().all(|run| setting(run) == setting(&runs[0]))
}

/// What all runs have in common, or one of them has: model, precision, micro-batch, device.
pub(super) fn describe(run: &Run) -> String {
    format!("{}, {}, micro-batch {} on {}", run.model, run.precision, run.micro_batch, run.device_model)
}

impl Series<'_> {
    /// What names it among others of the same setting.
    pub(super) fn name(&self) -> String {
        let run = self.runs[0];
        format!("{}, {}", run.scaling.name(), how(run))
    }

    /// Tokens a second and rank over those of the smallest number of ranks.
    pub(super) fn efficiency(&self, run: &Run) -> f64 {
        let each = |run: &Run| run.tokens_per_second() / run.ranks as f64;
        each(run) / each(self.runs[0])
    }

    /// How many ranks the efficiency is measured against.
    pub(super) fn against(&self) -> usize {
        self.runs[0].ranks
    }
}

/// How gradients were reduced.
pub(super) fn how(run: &Run) -> String {
    format!("{}{}", run.reduction, if run.shard_optimizer { ", sharded" } else { "" })
}
