//! The phases of a training step, and their times.

use std::time::Duration;

system::names! {
    /// A phase of a training step, on the device's compute stream.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Phase {
        /// Reading micro-batches and copying them to the device, including waits for a slow host.
        Inputs = "inputs",
        /// Forward passes, including the loss.
        Forward = "forward",
        /// Backward passes. Excludes overlapped reduction.
        Backward = "backward",
        /// Waiting for other pipeline stages: bubbles, the wait before the gradient norm, and exposed
        /// transfers. On the CPU, all transfers, because none overlaps.
        Pipeline = "pipeline",
        /// Waiting for exchanges with tensor- and context-parallel ranks. On the CPU, all exchanges, because
        /// none overlaps.
        Exchange = "exchange",
        /// Waiting for reduced gradients and, with sharded optimizer state, for the norm and updated weights;
        /// includes waits for slower ranks. On the CPU, all of this communication, because none overlaps.
        Reduce = "reduce",
        /// Gradient norm, clipping and weight update.
        Update = "optimizer",
    }
}

impl Phase {
    /// Returns whether the rank only waits for other ranks in this phase.
    pub fn waits(self) -> bool {
        matches!(self, Phase::Pipeline | Phase::Exchange | Phase::Reduce)
    }

    /// Index in [`Phase::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}

/// Times of a rank's steps, in microseconds. The median step may differ from the sum of the phases' medians.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseTimes {
    /// Number of timed steps.
    pub steps: u64,
    /// Median time of each phase.
    pub median: [u64; Phase::ALL.len()],
    /// Total time of each phase over all steps.
    pub whole: [u64; Phase::ALL.len()],
    /// Median time of a step.
    pub median_step: u64,
}

impl PhaseTimes {
    /// Total time of all steps.
    pub fn whole_step(&self) -> u64 {
        self.whole.iter().sum()
    }
}

/// Number of latest steps used for medians.
const KEPT: usize = 1024;

/// Collects the phase times of consecutive steps.
#[derive(Clone, Debug, Default)]
pub struct PhaseCounter {
    steps: u64,
    whole: [Duration; Phase::ALL.len()],
    /// Phase times of the latest steps; a ring buffer once full.
    last: Vec<[Duration; Phase::ALL.len()]>,
}

impl PhaseCounter {
    /// Adds one step's time in each phase.
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

    /// Returns totals over all steps and medians over the last 1,024.
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
    fn times_are_medians_and_sums() {
        let mut counter = PhaseCounter::default();
        assert_eq!(counter.times(), PhaseTimes::default());
        for (forward, backward) in [(3, 70), (1, 90), (2, 100)] {
            let time = Duration::from_micros;
            let rest = [time(0), time(0), Duration::from_nanos(1499)];
            counter.add([time(0), time(forward), time(backward), rest[0], Duration::ZERO, rest[1], rest[2]]);
        }
        let times = counter.times();
        assert_eq!((times.steps, times.median, times.median_step), (3, [0, 2, 90, 0, 0, 0, 1], 92));
        assert_eq!((times.whole, times.whole_step()), ([0, 6, 260, 0, 0, 0, 4], 270));
    }

    #[test]
    fn medians_are_over_the_last_steps() {
        let mut counter = PhaseCounter::default();
        for step in 0..3000 {
            counter.add([Duration::from_micros(if step < 2000 { 1 } else { 9 }); 7]);
        }
        let times = counter.times();
        assert_eq!((times.steps, times.median, times.median_step), (3000, [9; 7], 63));
        assert_eq!(times.whole, [2000 + 9000; 7]);
    }
}
