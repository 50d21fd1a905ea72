//! Which steps a run has, and what follows which of them.

use config::RunConfig;

/// Which steps there are, and which are followed by a validation or a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Calendar {
    /// How many steps there are.
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

    /// Whether a validation follows step `step`, counted from 0: the last one, and every so many.
    pub fn validates_after(&self, step: u64) -> bool {
        let due = self.validate_every > 0 && (step + 1).is_multiple_of(self.validate_every);
        due || step + 1 == self.steps
    }

    /// Whether a checkpoint follows step `step`, counted from 0: every so many, and the last, wherever that is.
    pub fn saves_after(&self, step: u64, interrupted: bool) -> bool {
        let last = interrupted || step + 1 == self.steps;
        self.save_every > 0 && (last || (step + 1).is_multiple_of(self.save_every))
    }
}
