//! The baseline: devices that compute at the same time without communication.

use super::rounds::Rounds;
use super::series::{Series, setting};
use super::{Scaling, ScalingRun};

/// All baselines among a set of runs.
#[derive(Clone, Debug)]
pub(super) struct Alone<'a>(Vec<Rounds<'a>>);

impl<'a> Alone<'a> {
    pub(super) fn among(runs: &'a [ScalingRun]) -> Self {
        let mut all: Vec<Rounds<'a>> = Vec::new();
        for run in runs.iter().filter(|run| run.scaling == Scaling::Alone) {
            let same = |there: &&mut Rounds<'a>| {
                let there = there.median();
                same_work(there, run) && there.ranks == run.ranks && devices(there).eq(devices(run))
            };
            match all.iter_mut().find(same) {
                Some(there) => there.add(run),
                None => all.push(Rounds::from_run(run)),
            }
        }
        Alone(all)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn all(&self) -> &[Rounds<'a>] {
        &self.0
    }

    /// Returns the throughput of `run` relative to the same devices working alone on the same batch per rank.
    /// Uses the smallest baseline that begins with these devices; `None` if there is none or the run does not
    /// name its devices.
    pub(super) fn against(&self, run: &ScalingRun) -> Option<f64> {
        if devices(run).any(|(_, device)| device.is_empty()) {
            return None;
        }
        let medians = self.0.iter().map(Rounds::median);
        let has_devices = |alone: &ScalingRun| devices(alone).take(run.ranks).eq(devices(run));
        let fitting = medians.filter(|alone| same_work(alone, run) && has_devices(alone));
        let alone = fitting.min_by_key(|alone| alone.ranks)?;
        Some(run.tokens_per_second() / alone.tokens_per_second_of_each().take(run.ranks).sum::<f64>())
    }
}

/// Returns the throughput per device of `alone` relative to a single-rank run on an otherwise idle host;
/// `None` if there is no such run.
pub(super) fn against_one(alone: &ScalingRun, all: &[Series<'_>]) -> Option<f64> {
    let first = all.iter().filter_map(|series| series.runs.first());
    let one = first.copied().find(|run| run.ranks == 1 && same_work(run, alone))?;
    Some(alone.tokens_per_second() / alone.ranks as f64 / one.tokens_per_second())
}

/// Returns the host and device of each rank, in rank order. Lines of older versions do not name the device.
fn devices(run: &ScalingRun) -> impl Iterator<Item = (&str, &str)> {
    run.by_rank.iter().map(|rank| (rank.host.as_str(), rank.device.as_str()))
}

/// Returns whether the ranks of both runs have the same setting and batch per rank.
fn same_work(run: &ScalingRun, other: &ScalingRun) -> bool {
    setting(run) == setting(other) && run.micro_batches_of_each() == other.micro_batches_of_each()
}
