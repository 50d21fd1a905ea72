//! The parts of a training step, and what they took.

use std::time::Duration;

/// A part of a training step, as its device's compute stream goes through them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Reading micro-batches and bringing them to the device; also what a device waits for a host that is late with it.
    Inputs,
    /// Forward passes, with the loss.
    Forward,
    /// Backward passes. Leaves out reduction that goes on beside them.
    Backward,
    /// What compute waits for other stages of the model: the pipeline's bubble, and what of its transfers is exposed. On a
    /// host, which transfers and computes in turn, all of them.
    Pipeline,
    /// What compute waits for other ranks: for the sum of gradients and, where the optimizer is divided among them, for
    /// norms and, where a pass comes to them, for new weights. That is the exposed part of the communication, the waiting for
    /// slower ranks included. On a host nothing overlaps, so all of it is here.
    Reduce,
    /// Norm, clipping and the update of the weights.
    Update,
}

impl Phase {
    /// All of them, in a step's order.
    pub const ALL: [Phase; 6] =
        [Phase::Inputs, Phase::Forward, Phase::Backward, Phase::Pipeline, Phase::Reduce, Phase::Update];

    /// Whether it is a wait for other ranks.
    pub fn waits(self) -> bool {
        matches!(self, Phase::Pipeline | Phase::Reduce)
    }

    /// In tables and in keys.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Inputs => "inputs",
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::Pipeline => "pipeline",
            Phase::Reduce => "reduce",
            Phase::Update => "optimizer",
        }
    }

    /// Its place in [`Phase::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}

/// What a rank's steps took, in microseconds. The step is the sum of its phases; the median of the steps need not be the sum
/// of the phases' medians.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseTimes {
    /// Steps that were timed.
    pub steps: u64,
    /// By phase, the median over steps of what a step spends in it.
    pub median: [u64; Phase::ALL.len()],
    /// By phase, all steps together.
    pub whole: [u64; Phase::ALL.len()],
    /// The median step.
    pub median_step: u64,
}

impl PhaseTimes {
    /// All timed steps together.
    pub fn whole_step(&self) -> u64 {
        self.whole.iter().sum()
    }
}

/// Steps that medians are taken of: the last ones.
const KEPT: usize = 1024;

/// Adds up the phases of step after step.
#[derive(Clone, Debug, Default)]
pub struct PhaseCounter {
    steps: u64,
    whole: [Duration; Phase::ALL.len()],
    /// A ring, once it is full.
    last: Vec<[Duration; Phase::ALL.len()]>,
}

impl PhaseCounter {
    /// Counts a step that took so long in each phase.
    pub fn add(&mut self, step: [Duration; Phase::ALL.len()]) {
        for (whole, phase) in self.whole.iter_mut().zip(step) {
            *whole += phase;
        }
        match self.last.len() {
            KEPT => self.last[(self.steps % KEPT as u64) as usize] = step,
            _ => self.last.push(step),
        }
        self.steps += 1;
    }

    /// What they came to: sums over all steps, medians over the last 1,024.
    pub fn times(&self) -> PhaseTimes {
        PhaseTimes {
            steps: self.steps,
            median: Phase::ALL.map(|phase| median(self.last.iter().map(|step| step[phase.index()]))),
            whole: self.whole.map(microseconds),
            median_step: median(self.last.iter().map(|step| step.iter().sum())),
        }
    }
}

fn median(times: impl Iterator<Item = Duration>) -> u64 {
    let mut sorted: Vec<Duration> = times.collect();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).map_or(0, |time| microseconds(*time))
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from((time.as_nanos() + 500) / 1000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_sums() {
        let mut counter = PhaseCounter::default();
        assert_eq!(counter.times(), PhaseTimes::default());
        for (forward, backward) in [(3, 70), (1, 90), (2, 100)] {
            let time = Duration::from_micros;
            let rest = [time(0), time(0), Duration::from_nanos(1499)];
            counter.add([time(0), time(forward), time(backward), rest[0], rest[1], rest[2]]);
        }
        let times = counter.times();
        assert_eq!((times.steps, times.median, times.median_step), (3, [0, 2, 90, 0, 0, 1], 92));
        assert_eq!((times.whole, times.whole_step()), ([0, 6, 260, 0, 0, 4], 270));
    }

    #[test]
    fn medians_are_those_of_the_last_steps() {
        let mut counter = PhaseCounter::default();
        for step in 0..3000 {
            counter.add([Duration::from_micros(if step < 2000 { 1 } else { 9 }); 6]);
        }
        let times = counter.times();
        assert_eq!((times.steps, times.median, times.median_step), (3000, [9; 6], 54));
        assert_eq!(times.whole, [2000 + 9000; 6]);
    }
}
