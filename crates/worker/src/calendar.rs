//! The steps of a run, and the validations and checkpoints between them.

use config::RunConfig;

/// The steps of a run, and those followed by a validation or a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Calendar {
    /// Number of steps.
    pub steps: u64,
    validate_every: u64,
    save_every: u64,
    /// Validations without a lower loss after which the run ends; `None`: it runs all steps.
    pub patience: Option<u64>,
}

impl Calendar {
    /// The calendar of a configuration.
    pub fn new(config: &RunConfig) -> Self {
        let RunConfig { train, checkpoint, .. } = config;
        Calendar {
            steps: train.steps,
            validate_every: train.validate_every,
            save_every: checkpoint.every,
            patience: Some(train.patience).filter(|patience| *patience > 0),
        }
    }

    /// Returns whether a validation follows step `step`, counted from 0: every `validate_every` steps, and
    /// after the last.
    pub fn validates_after(&self, step: u64) -> bool {
        let due = self.validate_every > 0 && (step + 1).is_multiple_of(self.validate_every);
        due || step + 1 == self.steps
    }

    /// Returns the first step after `step` that a validation follows (`validates`) or does not; `None` if
    /// there is no such step.
    pub fn next(&self, step: u64, validates: bool) -> Option<u64> {
        let after = step.saturating_add(1);
        if !validates {
            // Two consecutive steps are both validated only at the end, unless all are.
            let later = after..after.saturating_add(2).min(self.steps);
            return later.into_iter().find(|step| !self.validates_after(*step));
        }
        let last = self.steps.checked_sub(1).filter(|last| *last > step)?;
        let due = after.saturating_add(1).checked_next_multiple_of(self.validate_every);
        Some(due.map_or(last, |due| (due - 1).min(last)))
    }

    /// Returns whether a checkpoint by number of steps is due after step `step`, counted from 0.
    pub fn saves_after(&self, step: u64) -> bool {
        self.save_every > 0 && (step + 1).is_multiple_of(self.save_every)
    }
}

#[cfg(test)]
mod tests {
    use super::Calendar;

    #[test]
    fn the_next_step_of_a_kind_is_the_first_one() {
        for steps in 1..12 {
            for validate_every in 0..6 {
                let calendar = Calendar { steps, validate_every, save_every: 0, patience: None };
                for step in 0..steps {
                    for validates in [false, true] {
                        let expected =
                            (step + 1..steps).find(|later| calendar.validates_after(*later) == validates);
                        assert_eq!(calendar.next(step, validates), expected, "{calendar:?} {step}");
                    }
                }
            }
        }
    }
}
