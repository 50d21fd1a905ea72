//! Summary of a run's validations.

/// Summary of a run's validations up to some step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Validations {
    /// Mean loss of the last validation.
    pub last: Option<f64>,
    /// Steps completed before the last validation; `None` in checkpoints of earlier versions.
    pub step: Option<u64>,
    /// The lowest validation loss.
    pub best: Option<f64>,
    /// Number of validations after the one with the lowest loss.
    pub since_best: u64,
}

impl Validations {
    /// Adds the loss of a validation after `step` steps and returns whether it is the lowest so far.
    pub fn add(&mut self, step: u64, loss: f64) -> bool {
        (self.last, self.step) = (Some(loss), Some(step));
        let is_best = loss.is_finite() && self.best.is_none_or(|best| loss < best);
        if is_best {
            (self.best, self.since_best) = (Some(loss), 0);
        } else {
            self.since_best += 1;
        }
        is_best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_finite_loss_is_best() {
        let mut validations = Validations::default();
        let table = [(2.0, true, 0), (f64::NAN, false, 1), (2.0, false, 2), (1.5, true, 0), (3.0, false, 1)];
        for (step, (loss, is_best, since_best)) in (1..).zip(table) {
            let actual = (validations.add(step, loss), validations.since_best);
            assert_eq!(actual, (is_best, since_best), "{loss}");
        }
        assert_eq!((validations.last, validations.step, validations.best), (Some(3.0), Some(5), Some(1.5)));
    }
}
