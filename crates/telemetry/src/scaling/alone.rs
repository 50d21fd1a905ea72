//! What devices do alone, all at the same time: what runs are measured against.

use super::rounds::Rounds;
use super::series::{Series, setting};
use super::{Run, Scaling};

/// Every baseline among some runs.
#[derive(Clone, Debug)]
pub(super) struct Alone<'a>(Vec<Rounds<'a>>);

impl<'a> Alone<'a> {
    pub(super) fn among(runs: &'a [Run]) -> Self {
        let mut all: Vec<Rounds<'a>> = Vec::new();
        for run in runs.iter().filter(|run| run.scaling == Scaling::Alone) {
            let same =
                |there: &&mut Rounds<'a>| like(there.median(), run) && there.median().ranks == run.ranks;
            match all.iter_mut().find(same) {
                Some(there) => there.add(run),
                None => all.push(Rounds::of(run)),
            }
        }
        Alone(all)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each in all of its rounds.
    pub(super) fn all(&self) -> &[Rounds<'a>] {
        &self.0
    }

    /// Tokens a second of `run` over what its ranks' devices do alone with as much to do for each: `None` where that was not
    /// measured. Of several baselines that have the devices, the one with the fewest.
    pub(super) fn against(&self, run: &Run) -> Option<f64> {
        let medians = self.0.iter().map(Rounds::median);
        let fitting = medians.filter(|alone| like(alone, run) && alone.ranks >= run.ranks);
        let alone = fitting.min_by_key(|alone| alone.ranks)?;
        Some(run.tokens_per_second() / alone.tokens_per_second_of_each().take(run.ranks).sum::<f64>())
    }
}

/// Tokens a second and device of `alone` over those of one rank while nobody else computes, where a series has that.
pub(super) fn against_one(alone: &Run, all: &[Series<'_>]) -> Option<f64> {
    let first = all.iter().filter_map(|series| series.runs.first());
    let one = first.copied().find(|run| run.ranks == 1 && like(run, alone))?;
    Some(alone.tokens_per_second() / alone.ranks as f64 / one.tokens_per_second())
}

/// Whether ranks of both have the same to do.
fn like(run: &Run, other: &Run) -> bool {
    setting(run) == setting(other) && run.micro_batches_of_each() == other.micro_batches_of_each()
}
