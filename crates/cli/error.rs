//! Errors of the commands.

use std::path::PathBuf;

use bench::BenchError;
use config::ConfigError;
use plan::PlanError;
use recipes::RecipeError;
use run::{JobError, RunError};
use telemetry::TelemetryError;
use worker::WorkerError;

/// An error of a command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The command line or the machine does not allow the command.
    #[error("{0}")]
    Refused(String),
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The rank of a single-rank command failed.
    #[error(transparent)]
    OneRank(#[from] WorkerError),
    /// The run could not be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A new configuration could not be created.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// The run was refused or failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The measurement was refused or failed.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// Tokenizing was refused or failed.
    #[error(transparent)]
    Tokenize(#[from] tokenize::Error),
    /// A file of measurements could not be read or written.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// A measurement failed.
    #[error("{0}")]
    Measurement(String),
    /// A rank failed, and with it the command.
    #[error("rank {rank} failed: {reason}")]
    Rank {
        /// The rank that failed first.
        rank: usize,
        /// The underlying message.
        reason: String,
    },
    /// The error has already been printed as part of the command's output.
    #[error("see above")]
    Shown {
        /// The exit status.
        status: u8,
    },
    /// A file could not be written or read.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

impl JobError for CliError {
    fn exit_status(&self) -> u8 {
        match self {
            CliError::Refused(_) | CliError::Config(_) => 2,
            CliError::Telemetry(error) if error.is_refused() => 2,
            CliError::Tokenize(error) => {
                if error.is_refused() {
                    2
                } else {
                    1
                }
            }
            CliError::Shown { status } => *status,
            CliError::OneRank(error) => error.exit_status(),
            CliError::Plan(error) => error.exit_status(),
            CliError::Recipe(error) => error.exit_status(),
            CliError::Run(error) => error.exit_status(),
            CliError::Bench(error) => error.exit_status(),
            CliError::Telemetry(_)
            | CliError::Measurement(_)
            | CliError::Rank { .. }
            | CliError::File { .. } => 1,
        }
    }

    fn is_reported(&self) -> bool {
        matches!(
            self,
            CliError::Shown { .. }
                | CliError::Run(RunError::Reported { .. })
                | CliError::Bench(BenchError::Run(RunError::Reported { .. }))
        )
    }
}
