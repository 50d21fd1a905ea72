//! Learning-rate schedules: the rate as a function of the step.

use std::f64::consts::PI;

/// Linear warm-up, then a decay.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// The highest rate, reached at the end of the warm-up.
    pub peak: f64,
    /// First step of the schedule, from which other steps are counted; earlier steps have its rate.
    pub start: u64,
    /// Number of warm-up steps.
    pub warmup_steps: u64,
    /// Decay after the warm-up.
    pub decay: Decay,
}

/// Decay of the rate from its peak.
#[derive(Clone, Debug, PartialEq)]
pub enum Decay {
    /// Half a cosine over `steps` steps, warm-up included. It would reach `minimum` one step after the last.
    Cosine {
        /// Rate that the cosine would reach one step after the last.
        minimum: f64,
        /// Total number of steps.
        steps: u64,
    },
    /// No decay.
    Constant,
    /// Constant until step `start` or the end of the warm-up, then linear. The line would reach `minimum` at
    /// step `end`, one after the last.
    Linear {
        /// First step of the linear decay, counted from 0.
        start: u64,
        /// Step after the last.
        end: u64,
        /// Rate that the line would reach at `end`.
        minimum: f64,
    },
    /// Multiplies the rate by `gamma` at each of these steps, counted from 0, as PyTorch's `MultiStepLR`.
    Milestones {
        /// Steps at which the rate is multiplied.
        steps: Vec<u64>,
        /// Factor of the rate.
        gamma: f64,
    },
    /// Multiplies the rate by `gamma` after every `step_size` steps, as PyTorch's `StepLR`.
    Every {
        /// Number of steps between multiplications, at least 1.
        step_size: u64,
        /// Factor of the rate.
        gamma: f64,
    },
}

impl Schedule {
    /// Returns the rate of step `step`, counted from 0. With w warm-up steps, the first has rate peak / w,
    /// and the first step after them the peak.
    pub fn rate(&self, step: u64) -> f32 {
        let step = step.saturating_sub(self.start);
        if step < self.warmup_steps {
            return (self.peak * (step + 1) as f64 / self.warmup_steps as f64) as f32;
        }
        let rate = match &self.decay {
            Decay::Cosine { minimum, steps } => {
                let length = steps.saturating_sub(self.warmup_steps).max(1) as f64;
                let done = ((step - self.warmup_steps) as f64 / length).min(1.0);
                minimum + (self.peak - minimum) * 0.5 * (1.0 + (PI * done).cos())
            }
            Decay::Constant => self.peak,
            Decay::Linear { start, end, minimum } => {
                let start = (*start).max(self.warmup_steps);
                let length = end.saturating_sub(start).max(1) as f64;
                let done = (step.saturating_sub(start) as f64 / length).min(1.0);
                self.peak + (minimum - self.peak) * done
            }
            Decay::Milestones { steps, gamma } => {
                self.peak * power(*gamma, steps.iter().filter(|milestone| **milestone <= step).count() as u64)
            }
            Decay::Every { step_size, gamma } => self.peak * power(*gamma, step / (*step_size).max(1)),
        };
        rate as f32
    }
}

/// Returns `gamma` to the power `count`; 0 if that is below every f32.
fn power(gamma: f64, count: u64) -> f64 {
    gamma.powi(i32::try_from(count).unwrap_or(i32::MAX))
}

#[cfg(test)]
mod tests {
    use super::{Decay, Schedule};

    #[test]
    fn rate_rises_then_falls_towards_the_minimum() {
        let schedule = Schedule {
            peak: 1e-3,
            start: 0,
            warmup_steps: 5,
            decay: Decay::Cosine { minimum: 1e-4, steps: 20 },
        };
        let close =
            |step: u64, expected: f64| assert!((f64::from(schedule.rate(step)) - expected).abs() < 1e-9);
        close(0, 2e-4);
        close(4, 1e-3);
        close(5, 1e-3);
        close(20, 1e-4);
        close(30, 1e-4);
        assert!((5..20).all(|step| schedule.rate(step) > schedule.rate(step + 1)));
    }

    #[test]
    fn equal_peak_and_minimum_give_a_constant_rate() {
        let schedule = Schedule {
            peak: 0.5,
            start: 0,
            warmup_steps: 0,
            decay: Decay::Cosine { minimum: 0.5, steps: 1 },
        };
        assert_eq!([schedule.rate(0), schedule.rate(7)], [0.5, 0.5]);
    }

    /// Rates after warm-up of transformers' `get_linear_schedule_with_warmup`, `get_constant_schedule` and
    /// `get_wsd_schedule`, and of a linear decay that begins at the last step.
    #[test]
    fn lines_fall_to_their_minimum() {
        let line = |start: u64, minimum: f64| Decay::Linear { start, end: 8, minimum };
        let table = [
            (line(0, 0.0), [0.5, 1.0, 1.0, 5.0 / 6.0, 4.0 / 6.0, 0.5, 2.0 / 6.0, 1.0 / 6.0, 0.0, 0.0]),
            (line(0, 0.4), [0.5, 1.0, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.4]),
            (line(4, 0.0), [0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]),
            (Decay::Constant, [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ];
        for (decay, rates) in table {
            let schedule = Schedule { peak: 1.0, start: 0, warmup_steps: 2, decay };
            for (step, rate) in (0..).zip(rates) {
                assert!((f64::from(schedule.rate(step)) - rate).abs() < 1e-7, "{schedule:?} {step}");
            }
            assert!(schedule.rate(u64::MAX) >= 0.0);
        }
        let short = Schedule { peak: 1.0, start: 0, warmup_steps: 20, decay: line(0, 0.0) };
        assert_eq!([short.rate(7), short.rate(20), short.rate(21)], [0.4, 1.0, 0.0]);
    }

    #[test]
    fn a_later_start_moves_the_schedule() {
        let decay = || Decay::Linear { start: 0, end: 6, minimum: 0.0 };
        let early = Schedule { peak: 1.0, start: 0, warmup_steps: 2, decay: decay() };
        let late = Schedule { start: 4, ..early.clone() };
        let rates = |schedule: &Schedule, first: u64| {
            (first..first + 8).map(|step| schedule.rate(step)).collect::<Vec<_>>()
        };
        assert_eq!(rates(&late, 4), rates(&early, 0));
        assert_eq!(late.rate(0), early.rate(0));
    }

    /// Rates of `torch.optim.lr_scheduler.MultiStepLR` and `StepLR`.
    #[test]
    fn steps_multiply_the_rate() {
        let milestones = Decay::Milestones { steps: vec![3, 6], gamma: 0.1 };
        let every = Decay::Every { step_size: 4, gamma: 0.5 };
        let table = [
            (milestones, [0.05, 0.1, 0.1, 0.01, 0.01, 0.01, 0.001, 0.001, 0.001]),
            (every, [0.05, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05, 0.025]),
        ];
        for (decay, rates) in table {
            let schedule = Schedule { peak: 0.1, start: 0, warmup_steps: 2, decay };
            for (step, rate) in (0..).zip(rates) {
                assert!((f64::from(schedule.rate(step)) - rate).abs() < 1e-8, "{schedule:?} {step}");
            }
            assert!(schedule.rate(u64::MAX) >= 0.0);
        }
    }
}
