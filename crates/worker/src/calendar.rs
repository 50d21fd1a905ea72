//! The steps of a run, and the validations and checkpoints between them.

use config::RunConfig;

/// The steps of a run, and those that a validation or a checkpoint follows.
#[derive(Clone, Copy, Debug)]
pub struct Calendar {
    /// Number of steps.
    pub steps: u64,
    validate_every: u64,
    save_every: u64,
}

impl Calendar {
    /// The calendar of a configuration.
    pub fn new(config: &RunConfig) -> Self {
        let RunConfig { train, checkpoint, .. } = config;
        Calendar { steps: train.steps, validate_every: train.validate_every, save_every: checkpoint.every }
    }

    /// Returns whether a validation follows step `step`, counted from 0: every `validate_every` steps, and
    /// after the last.
    pub fn validates_after(&self, step: u64) -> bool {
        let due = self.validate_every > 0 && (step + 1).is_multiple_of(self.validate_every);
        due || step + 1 == self.steps
    }

    /// Returns whether a checkpoint follows step `step`, counted from 0: every `save_every` steps, and after
    /// the last, also of an interrupted run.
    pub fn saves_after(&self, step: u64, interrupted: bool) -> bool {
        let last = interrupted || step + 1 == self.steps;
        self.save_every > 0 && (last || (step + 1).is_multiple_of(self.save_every))
    }
}
