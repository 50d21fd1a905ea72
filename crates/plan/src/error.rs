//! Errors of planning.

use autograd::AutogradError;
use collective::CollectiveError;
use config::ConfigError;
use device::DeviceError;
use nn::NnError;
use parallel::ParallelError;
use tensor::TensorError;
use worker::{WorkerError, is_out_of_memory};

/// Result type of planning.
pub type Result<T> = std::result::Result<T, PlanError>;

/// Error of a plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The command line, a file or the device does not allow this run.
    #[error("{0}")]
    Refused(String),
    /// Planning would take more work than is allowed, explained in a sentence.
    #[error("{0}")]
    TooLong(String),
    /// A rank failed on Meta.
    #[error(transparent)]
    Worker(#[from] WorkerError),
}

impl PlanError {
    /// Returns the program's exit status: 2 if the command line, configuration or data is wrong, 1 if a rank
    /// failed.
    pub fn exit_status(&self) -> u8 {
        match self {
            PlanError::Config(_) | PlanError::Refused(_) | PlanError::TooLong(_) => 2,
            PlanError::Worker(error) => error.exit_status(),
        }
    }

    /// Returns whether the command line, a file or the device does not allow the run.
    pub fn is_refused(&self) -> bool {
        match self {
            PlanError::Refused(_) | PlanError::TooLong(_) => true,
            PlanError::Worker(error) => error.is_refused(),
            PlanError::Config(_) => false,
        }
    }

    /// Returns whether planning would take more work than is allowed.
    pub fn is_too_long(&self) -> bool {
        matches!(self, PlanError::TooLong(_))
    }

    /// Returns whether a device would run out of memory or reach its limit.
    pub fn is_out_of_memory(&self) -> bool {
        is_out_of_memory(self)
    }
}

/// Converts errors of lower crates through [`WorkerError`].
macro_rules! from_below {
    ($($source:ty),* $(,)?) => {
        $(impl From<$source> for PlanError {
            fn from(source: $source) -> Self {
                PlanError::Worker(source.into())
            }
        })*
    };
}

from_below!(AutogradError, CollectiveError, DeviceError, NnError, ParallelError, TensorError);
