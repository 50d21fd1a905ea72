//! Errors that prevent a run from starting or end it.

use std::path::{Path, PathBuf};

use crate::history::NonFinite;
use autograd::AutogradError;
use checkpoint::CheckpointError;
use collective::CollectiveError;
use config::ConfigError;
use device::DeviceError;
use nn::NnError;
use plan::PlanError;
use pretrained::PretrainedError;
use telemetry::TelemetryError;
use telemetry::units::grouped;
use tensor::TensorError;
use worker::{WorkerError, is_out_of_memory};

/// Result type of a run.
pub type Result<T> = std::result::Result<T, RunError>;

/// An error that prevented a run from starting or ended it.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The command line, the environment or the machine does not allow this run.
    #[error("{0}")]
    Refused(String),
    /// The run could not be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A rank of this process failed.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// A rank failed, which ended the run.
    #[error("rank {rank} failed: {reason}")]
    Rank {
        /// The rank that failed first.
        rank: usize,
        /// The rank's error message.
        reason: String,
    },
    /// A rank failed, which ended the run. The text is the failure report with the last status of every rank.
    #[error("{0}")]
    Failed(String),
    /// Another process of the job failed.
    #[error("{text}")]
    Elsewhere {
        /// The exit status of that process.
        status: u8,
        /// The error message, with the process's rank and host.
        text: String,
    },
    /// Another process of the job prints the error; this one prints nothing.
    #[error("another rank prints the error")]
    Reported {
        /// The exit status of all processes.
        status: u8,
    },
    /// A rank's device ran out of memory.
    #[error("{source}; {left}")]
    OutOfMemory {
        /// The allocation that failed.
        #[source]
        source: Box<RunError>,
        /// Paths of the files that describe the allocator's state.
        left: String,
    },
    /// A checkpoint is refused.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Training is done, but its last checkpoint could not be written.
    #[error("the last checkpoint was not written: {0}")]
    Unsaved(#[source] CheckpointError),
    /// The loss or gradient norm was not finite in too many consecutive steps.
    #[error("{lost}; {}", last_checkpoint(checkpoint.as_deref()))]
    NonFinite {
        /// The last step with a non-finite loss or norm.
        lost: NonFinite,
        /// The last checkpoint before these steps.
        checkpoint: Option<PathBuf>,
    },
    /// A gradient norm spike ended the run, as configured.
    #[error("{spike}; {}", last_checkpoint(checkpoint.as_deref()))]
    Spike {
        /// Description of the step, its gradient norm and recent norms.
        spike: String,
        /// The last checkpoint before the spike.
        checkpoint: Option<PathBuf>,
    },
    /// A step had a gradient norm spike. [`train`](crate::train) restarts from the last checkpoint and skips
    /// its samples.
    #[error("{spike}; started again with --resume, the run leaves out its samples")]
    Rewound {
        /// The run directory.
        run_dir: PathBuf,
        /// Description of the step, its gradient norm and recent norms.
        spike: String,
    },
    /// The run stopped early without saving weights: either before its first step, or because checkpoints are
    /// off.
    #[error("{}", no_checkpoint(*steps))]
    NoCheckpoint {
        /// Steps done.
        steps: u64,
    },
    /// A step ran out of memory; [`train`](crate::train) retries it with smaller micro-batches.
    #[error("{reason}")]
    Repeatable {
        /// The run directory.
        run_dir: PathBuf,
        /// The step's error message.
        reason: String,
    },
    /// A file of the run could not be written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
}

impl RunError {
    /// Returns the exit status of the program: 2 if the command line, configuration or data is wrong, 1 if
    /// the run failed.
    pub fn exit_status(&self) -> u8 {
        match self {
            RunError::Config(_) | RunError::Refused(_) | RunError::Checkpoint(_) => 2,
            RunError::Plan(error) => error.exit_status(),
            RunError::Worker(error) => error.exit_status(),
            RunError::Elsewhere { status, .. } | RunError::Reported { status } => *status,
            _ => 1,
        }
    }

    /// Returns the error for an input file that cannot be read or is damaged.
    pub fn unreadable(path: &Path, source: impl std::fmt::Display) -> Self {
        RunError::Refused(format!("{}: cannot read it: {source}", path.display()))
    }

    /// Returns whether a device ran out of memory or reached its memory limit.
    pub fn is_out_of_memory(&self) -> bool {
        is_out_of_memory(self)
    }
}

/// An error that the processes of a job can report together.
pub trait JobError: std::fmt::Display + From<RunError> {
    /// Returns the exit status of the program: 2 if the command line, configuration or data is wrong, 1 if
    /// something failed.
    fn exit_status(&self) -> u8;

    /// Returns whether another process prints the error.
    fn is_reported(&self) -> bool;
}

impl JobError for RunError {
    fn exit_status(&self) -> u8 {
        RunError::exit_status(self)
    }

    fn is_reported(&self) -> bool {
        matches!(self, RunError::Reported { .. })
    }
}

/// Implements `From` for errors of lower crates by converting them to [`WorkerError`] first.
macro_rules! from_below {
    ($($source:ty),* $(,)?) => {
        $(impl From<$source> for RunError {
            fn from(source: $source) -> Self {
                RunError::Worker(source.into())
            }
        })*
    };
}

from_below!(
    AutogradError,
    CollectiveError,
    DeviceError,
    NnError,
    PretrainedError,
    TelemetryError,
    TensorError,
    data::Error
);

fn no_checkpoint(steps: u64) -> String {
    match steps {
        0 => "stopped before the first step".to_owned(),
        steps => format!(
            "stopped after step {}, and no weights are kept: checkpoint.every and checkpoint.minutes are 0",
            grouped(steps)
        ),
    }
}

fn last_checkpoint(path: Option<&Path>) -> String {
    match path {
        Some(path) => format!("the last good checkpoint is {}", path.display()),
        None => "there is no checkpoint".to_owned(),
    }
}
