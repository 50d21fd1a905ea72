//! Gradient norm spikes: the limit for a step's norm, and the action for a step above it.
//!
//! Decisions depend only on norms, which have the same bits on every grid. The host reads a step's norm after
//! it has enqueued the next step, so a limit depends on the norms up to two steps before.

use std::collections::VecDeque;

use config::{OnSpike, Train};
use serde::{Deserialize, Serialize};

/// Number of steps between a step and the last norm that its limit depends on; later norms may not have
/// reached the host.
const LAG: u64 = 2;
/// Minimum number of norms for computing a limit.
const LEAST_NORMS: usize = 8;

/// A step whose gradient norm was above its limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Spike {
    /// The step, from 1.
    pub(crate) step: u64,
    /// Index of its samples in data order, counted in steps from 0.
    pub(crate) samples: u64,
    pub(crate) gradient_norm: f32,
    /// Mean of the recent norms.
    pub(crate) mean: f64,
    /// Standard deviation of the recent norms.
    pub(crate) deviation: f64,
    /// The action taken, a value of `train.on_spike`.
    pub(crate) action: String,
}

impl Spike {
    /// Returns whether the run restarts from a checkpoint and skips the step's samples.
    pub(crate) fn rewinds(&self) -> bool {
        self.action == OnSpike::Rewind.name()
    }

    /// Returns whether the spike ends the session.
    pub(crate) fn ends(&self) -> bool {
        self.action != OnSpike::Skip.name()
    }

    pub(crate) fn in_words(&self) -> String {
        let Spike { step, gradient_norm, mean, deviation, .. } = self;
        let deviations = (f64::from(*gradient_norm) - mean) / deviation;
        format!(
            "step {step}: the gradient norm is {gradient_norm}, {deviations:.1} standard deviations above \
             the recent mean {mean:.4}"
        )
    }
}

/// Mean and standard deviation of recent norms.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Recent {
    mean: f64,
    deviation: f64,
}

/// The recent gradient norms of a run, and the limits computed from them.
#[derive(Clone, Debug)]
pub(crate) struct Norms {
    action: OnSpike,
    deviations: f64,
    window: usize,
    /// Norms of the last steps, oldest first; `None` for spikes and non-finite norms.
    norms: VecDeque<Option<f32>>,
    /// Number of steps so far.
    steps: u64,
}

impl Default for Norms {
    fn default() -> Self {
        Norms { action: OnSpike::Ignore, deviations: 0.0, window: 0, norms: VecDeque::new(), steps: 0 }
    }
}

impl Norms {
    /// Restores the state after `steps` steps; `norms` are the norms of the last ones.
    pub(crate) fn new(train: &Train, steps: u64, norms: &[Option<f32>]) -> Self {
        let action = train.on_spike;
        let deviations = train.spike_deviations;
        Norms {
            action,
            deviations,
            window: train.spike_window,
            norms: norms.iter().copied().collect(),
            steps,
        }
    }

    /// Returns the norms to store in a checkpoint; empty if spikes are ignored.
    pub(crate) fn kept(&self) -> Vec<Option<f32>> {
        self.norms.iter().copied().collect()
    }

    /// Returns the norm above which step `step`, counted from 0, is a spike: 0 if spikes are ignored,
    /// infinity while there are too few norms.
    pub(crate) fn limit(&self, step: u64) -> f32 {
        match self.recent(step) {
            _ if self.action == OnSpike::Ignore => 0.0,
            None => f32::INFINITY,
            Some(Recent { mean, deviation }) => (mean + self.deviations * deviation) as f32,
        }
    }

    /// Returns mean and standard deviation of the norms in the window that ends [`LAG`] steps before `step`;
    /// `None` if there are too few.
    fn recent(&self, step: u64) -> Option<Recent> {
        let first = self.steps - self.norms.len() as u64;
        let last = (step + 1).checked_sub(LAG)?;
        let of_window = last.saturating_sub(self.window as u64)..last;
        let numbered = (first..).zip(&self.norms).filter(|(step, _)| of_window.contains(step));
        let norms: Vec<f64> = numbered.filter_map(|(_, norm)| norm.map(f64::from)).collect();
        if norms.len() < LEAST_NORMS.min(self.window) {
            return None;
        }
        let count = norms.len() as f64;
        let mean = norms.iter().sum::<f64>() / count;
        let variance = norms.iter().map(|norm| (norm - mean).powi(2)).sum::<f64>() / count;
        Some(Recent { mean, deviation: variance.sqrt() })
    }

    /// Adds the norm of the next step. `samples` is the index of its samples. Returns the spike, if the norm
    /// exceeds its limit.
    pub(crate) fn add(&mut self, norm: f32, samples: u64) -> Option<Spike> {
        if self.action == OnSpike::Ignore {
            return None;
        }
        let step = self.steps;
        let limit = self.limit(self.steps);
        let spike = self.recent(step).filter(|_| norm > limit && norm.is_finite());
        self.norms.push_back(Some(norm).filter(|norm| norm.is_finite() && spike.is_none()));
        self.steps += 1;
        while self.norms.len() > self.window + LAG as usize {
            self.norms.pop_front();
        }
        spike.map(|Recent { mean, deviation }| Spike {
            step: step + 1,
            samples,
            gradient_norm: norm,
            mean,
            deviation,
            action: self.action.name().to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn norms(window: usize, values: &[f32]) -> Norms {
        let mut norms = Norms { action: OnSpike::Skip, deviations: 3.0, window, ..Norms::default() };
        values.iter().for_each(|norm| drop(norms.add(*norm, 0)));
        norms
    }

    #[test]
    fn a_limit_follows_from_norms_up_to_two_steps_before() {
        let calm = [1.0, 3.0, 1.0, 3.0, 1.0, 3.0, 1.0, 3.0];
        for (window, values, step, limit) in [
            (16, &calm[..7], 7, f32::INFINITY),
            (16, &calm, 8, f32::INFINITY),
            (16, &calm, 9, 5.0),
            // The norm of step 8 is not part of the limit of step 9.
            (16, &[&calm[..], &[4.0]].concat(), 9, 5.0),
            // A window of four norms.
            (4, &[&[100.0][..], &calm].concat(), 10, 5.0),
            (4, &[1.0, 1.0, 1.0, 1.0, 2.0], 5, 1.0),
        ] {
            assert_eq!(norms(window, values).limit(step), limit, "{values:?}, {step}");
        }
        assert_eq!(Norms::default().limit(9), 0.0);
    }

    #[test]
    fn a_spike_is_no_part_of_later_limits() {
        let calm = [1.0, 3.0, 1.0, 3.0, 1.0, 3.0, 1.0, 3.0, 2.0];
        let mut spiky = norms(16, &calm);
        let spike = spiky.add(5.5, 7).unwrap();
        assert_eq!((spike.step, spike.samples, spike.mean, spike.deviation), (10, 7, 2.0, 1.0));
        assert!(
            !spike.ends() && spike.in_words().starts_with("step 10: the gradient norm is 5.5, 3.5 standard")
        );
        assert_eq!(spiky.add(f32::NAN, 8), None);
        assert_eq!(spiky.add(2.0, 9), None);
        assert_eq!(spiky.kept()[9..], [None, None, Some(2.0)]);
        // A run that goes on from a checkpoint has the same limits.
        let kept = Norms { norms: spiky.kept().into(), steps: 12, ..norms(16, &[]) };
        assert_eq!(kept.limit(13), spiky.limit(13));
    }
}
