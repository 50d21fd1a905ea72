//! Repeated measurements of one run.

use super::ScalingRun;

/// All rounds of a run; at least one.
#[derive(Clone, Debug)]
pub(super) struct Rounds<'a> {
    median: &'a ScalingRun,
    /// The rounds, in order.
    all: Vec<&'a ScalingRun>,
}

impl<'a> Rounds<'a> {
    pub(super) fn from_run(run: &'a ScalingRun) -> Self {
        Rounds { median: run, all: vec![run] }
    }

    /// Adds a round of the same run. It replaces equal and later rounds, because measuring a run again
    /// discards its earlier measurement.
    pub(super) fn add(&mut self, run: &'a ScalingRun) {
        self.all.retain(|other| other.round < run.round);
        self.all.push(run);
        let mut sorted = self.all.clone();
        sorted.sort_by(|a, b| a.tokens_per_second().total_cmp(&b.tokens_per_second()));
        // The slower of two middle rounds, not their mean, so that all figures come from one round.
        self.median = sorted[(sorted.len() - 1) / 2];
    }

    /// Returns the round with the median throughput.
    pub(super) fn median(&self) -> &'a ScalingRun {
        self.median
    }

    pub(super) fn all(&self) -> &[&'a ScalingRun] {
        &self.all
    }

    /// Returns the throughput of the fastest round relative to the slowest, minus 1.
    pub(super) fn spread(&self) -> f64 {
        let speeds = self.all.iter().map(|run| run.tokens_per_second());
        let (least, most) =
            speeds.fold((f64::INFINITY, 0.0_f64), |(least, most), speed| (least.min(speed), most.max(speed)));
        most / least - 1.0
    }
}
