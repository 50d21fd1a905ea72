//! The `--step` argument.

use std::path::Path;
use std::str::FromStr;

use run::RunError;

use crate::error::CliError;

/// A run's checkpoint, as selected by `--step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The checkpoint after this many steps.
    Number(u64),
    /// The checkpoint with the lowest validation loss.
    Best,
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "best" => Ok(Step::Best),
            _ => text.parse().map(Step::Number).map_err(|_| "it is a step's number, or best".to_owned()),
        }
    }
}

impl Step {
    /// Returns the step number. `model` is a run directory or one of its checkpoints.
    ///
    /// # Errors
    /// The run keeps no best checkpoint.
    pub(crate) fn number(self, model: &Path) -> Result<u64, CliError> {
        match self {
            Step::Number(step) => Ok(step),
            Step::Best => run::best_step(model).map_err(|error| RunError::from(error).into()),
        }
    }
}
