//! Errors of measurements.

use autograd::AutogradError;
use collective::CollectiveError;
use config::ConfigError;
use device::DeviceError;
use nn::NnError;
use parallel::ParallelError;
use plan::PlanError;
use run::{JobError, RunError};
use telemetry::TelemetryError;
use tensor::TensorError;
use worker::WorkerError;

/// Result of a measurement.
pub type Result<T> = std::result::Result<T, BenchError>;

/// An error of a measurement.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "messages name their fields")]
pub enum BenchError {
    /// The command line or the machine does not allow this measurement.
    #[error("{0}")]
    Refused(String),
    /// The configuration could not be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The measured run failed to start or to end.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A rank of this process failed.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    #[error("rank {rank} failed: {reason}")]
    Rank { rank: usize, reason: String },
}

impl BenchError {
    /// Returns the program's exit status: 2 if the command line, configuration or data is invalid, 1 if a
    /// rank failed.
    pub fn exit_status(&self) -> u8 {
        match self {
            BenchError::Refused(_) => 2,
            BenchError::Plan(error) => error.exit_status(),
            BenchError::Run(error) => error.exit_status(),
            BenchError::Worker(error) => error.exit_status(),
            BenchError::Rank { .. } => 1,
        }
    }

    /// Returns whether the command line or the machine does not allow the measurement.
    pub fn is_refused(&self) -> bool {
        match self {
            BenchError::Refused(_) | BenchError::Run(RunError::Refused(_)) => true,
            BenchError::Plan(error) | BenchError::Run(RunError::Plan(error)) => error.is_refused(),
            BenchError::Worker(error) | BenchError::Run(RunError::Worker(error)) => error.is_refused(),
            BenchError::Run(_) | BenchError::Rank { .. } => false,
        }
    }
}

impl JobError for BenchError {
    fn exit_status(&self) -> u8 {
        BenchError::exit_status(self)
    }

    fn is_reported(&self) -> bool {
        matches!(self, BenchError::Run(RunError::Reported { .. }))
    }
}

impl From<ConfigError> for BenchError {
    fn from(source: ConfigError) -> Self {
        BenchError::Run(source.into())
    }
}

/// Converts errors of lower crates through [`WorkerError`].
macro_rules! from_below {
    ($($source:ty),* $(,)?) => {
        $(impl From<$source> for BenchError {
            fn from(source: $source) -> Self {
                BenchError::Worker(source.into())
            }
        })*
    };
}

from_below!(AutogradError, CollectiveError, DeviceError, NnError);
from_below!(ParallelError, TelemetryError, TensorError);
