//! One run, measured in several rounds.

use super::ScalingRun;

/// A run in all of its rounds, at least one.
#[derive(Clone, Debug)]
pub(super) struct Rounds<'a> {
    median: &'a ScalingRun,
    /// By rising round.
    all: Vec<&'a ScalingRun>,
}

impl<'a> Rounds<'a> {
    pub(super) fn of(run: &'a ScalingRun) -> Self {
        Rounds { median: run, all: vec![run] }
    }

    /// The same run once more. A round that is there already begins anew with it: of the same run measured twice the later
    /// counts.
    pub(super) fn add(&mut self, run: &'a ScalingRun) {
        self.all.retain(|other| other.round < run.round);
        self.all.push(run);
        let mut sorted = self.all.clone();
        sorted.sort_by(|a, b| a.tokens_per_second().total_cmp(&b.tokens_per_second()));
        // Of two in the middle the slower one: all figures of a run are of one round.
        self.median = sorted[(sorted.len() - 1) / 2];
    }

    /// The round that counts.
    pub(super) fn median(&self) -> &'a ScalingRun {
        self.median
    }

    /// All of them.
    pub(super) fn all(&self) -> &[&'a ScalingRun] {
        &self.all
    }

    /// How much faster the fastest is than the slowest: 0 for one round.
    pub(super) fn spread(&self) -> f64 {
        let speeds = self.all.iter().map(|run| run.tokens_per_second());
        let (least, most) =
            speeds.fold((f64::INFINITY, 0.0_f64), |(least, most), speed| (least.min(speed), most.max(speed)));
        most / least - 1.0
    }
}
