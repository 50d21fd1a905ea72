//! The learning rate as a function of the step.

use std::f64::consts::PI;

/// Linear warm-up, then half a cosine that would reach the minimum one step after the last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The highest rate, reached at the end of the warm-up.
    pub peak: f64,
    /// The rate that the cosine would reach one step after the last.
    pub minimum: f64,
    /// Number of warm-up steps.
    pub warmup_steps: u64,
    /// Total number of steps.
    pub steps: u64,
}

impl Schedule {
    /// Returns the rate of step `step`, counted from 0. The first of w warm-up steps has peak / w; the first
    /// step after them has the peak.
    pub fn rate(&self, step: u64) -> f32 {
        let rate = if step < self.warmup_steps {
            self.peak * (step + 1) as f64 / self.warmup_steps as f64
        } else {
            let length = self.steps.saturating_sub(self.warmup_steps).max(1) as f64;
            let done = ((step - self.warmup_steps) as f64 / length).min(1.0);
            self.minimum + (self.peak - self.minimum) * 0.5 * (1.0 + (PI * done).cos())
        };
        rate as f32
    }
}

#[cfg(test)]
mod tests {
    use super::Schedule;

    #[test]
    fn rate_rises_then_falls_towards_the_minimum() {
        let schedule = Schedule { peak: 1e-3, minimum: 1e-4, warmup_steps: 5, steps: 20 };
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
        let schedule = Schedule { peak: 0.5, minimum: 0.5, warmup_steps: 0, steps: 1 };
        assert_eq!([schedule.rate(0), schedule.rate(7)], [0.5, 0.5]);
    }
}
