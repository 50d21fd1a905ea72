//! Errors of one rank.

use std::path::PathBuf;

use autograd::AutogradError;
use checkpoint::CheckpointError;
use collective::CollectiveError;
use device::DeviceError;
use memory::AllocationError;
use nn::NnError;
use parallel::ParallelError;
use planned::PlannedError;
use pretrained::PretrainedError;
use tensor::TensorError;

use config::Origin;

/// Result type of a worker.
pub type Result<T> = std::result::Result<T, WorkerError>;

/// First words of a silent corruption report.
pub const CORRUPTION: &str = "silent corruption";

/// Error of a rank.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The training data is invalid.
    #[error("{origin}: {key}: {source}")]
    Data {
        /// Where the configuration names the data.
        origin: Origin,
        /// The configuration key that names the data.
        key: &'static str,
        /// The error in the data.
        #[source]
        source: tokenize::Error,
    },
    /// A micro-batch could not be read.
    #[error("the data: {0}")]
    Batch(#[from] data::Error),
    /// The command line, the environment or the machine does not allow this run.
    #[error("{0}")]
    Refused(String),
    /// A user's hook failed.
    #[error("a hook: {0}")]
    Hook(Box<dyn std::error::Error + Send + Sync>),
    /// A rank failed, which ended the run.
    #[error("rank {rank} failed: {reason}")]
    Rank {
        /// The rank that failed first.
        rank: usize,
        /// The rank's error message.
        reason: String,
    },
    /// A rank failed in a step.
    #[error("step {}, micro-batch {micro_batch}: {source}", step + 1)]
    Step {
        /// Index of the step, from 0; the message counts from 1.
        step: u64,
        /// Index of the micro-batch in the step, over all ranks, from 0.
        micro_batch: u64,
        /// The error.
        #[source]
        source: Box<WorkerError>,
    },
    /// A step ran out of memory before any rank changed its state, so that it can be repeated.
    #[error("step {}, rank {rank}: {reason}", step + 1)]
    Repeatable {
        /// Index of the step, from 0; the message counts from 1.
        step: u64,
        /// The first rank that ran out of memory.
        rank: usize,
        /// The error message of that rank.
        reason: String,
    },
    /// Two runs of the same micro-batch differ. No rank has changed its state.
    #[error("{CORRUPTION} in step {}: {report}", step + 1)]
    Corruption {
        /// Index of the step, from 0; the message counts from 1.
        step: u64,
        /// Description of the ranks, the operator and the hashes.
        report: String,
    },
    /// The model could not be built or run.
    #[error(transparent)]
    Model(#[from] NnError),
    /// Backward failed.
    #[error("backward: {0}")]
    Backward(#[from] AutogradError),
    /// The reduction failed.
    #[error(transparent)]
    Parallel(#[from] ParallelError),
    /// A collective failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Statistics could not be gathered, or files not written.
    #[error(transparent)]
    Telemetry(#[from] telemetry::TelemetryError),
    /// A checkpoint is refused.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A folder of weights is refused.
    #[error(transparent)]
    Pretrained(#[from] PretrainedError),
    /// A file of the run could not be written or read.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
}

impl From<PlannedError> for WorkerError {
    fn from(error: PlannedError) -> Self {
        match error {
            PlannedError::Collective(error) => error.into(),
            PlannedError::Telemetry(error) => error.into(),
            PlannedError::File { path, source } => WorkerError::File { path, source },
            other => WorkerError::Refused(other.to_string()),
        }
    }
}

impl WorkerError {
    /// Returns the exit status of the program: 2 if the command line, configuration or data is wrong, 1 if a
    /// rank failed.
    pub fn exit_status(&self) -> u8 {
        match self {
            WorkerError::Data { .. } | WorkerError::Refused(_) => 2,
            WorkerError::Checkpoint(_) | WorkerError::Pretrained(_) => 2,
            WorkerError::Model(error) | WorkerError::Parallel(ParallelError::Model(error))
                if error.is_refused() =>
            {
                2
            }
            WorkerError::Telemetry(error) if error.is_refused() => 2,
            _ => 1,
        }
    }

    /// Returns the number of tokens if the error is that data is shorter than a sequence; otherwise `None`.
    pub fn tokens_of_short_data(&self) -> Option<usize> {
        match self {
            WorkerError::Data {
                source: tokenize::Error::Data(data::Error::TooShort { total, .. }), ..
            } => usize::try_from(*total).ok(),
            _ => None,
        }
    }

    /// Returns whether the command line, the environment or the machine does not allow the run.
    pub fn is_refused(&self) -> bool {
        match self {
            WorkerError::Refused(_) => true,
            WorkerError::Model(error) | WorkerError::Parallel(ParallelError::Model(error)) => {
                error.is_refused()
            }
            _ => false,
        }
    }

    /// Returns whether a device ran out of memory or reached its memory limit.
    pub fn is_out_of_memory(&self) -> bool {
        is_out_of_memory(self)
    }
}

/// Returns whether the root cause of `error` is a device that ran out of memory or reached its memory limit.
pub fn is_out_of_memory(error: &(dyn std::error::Error + 'static)) -> bool {
    let chain = std::iter::successors(Some(error), |error| error.source());
    chain.into_iter().any(|error| matches!(error.downcast_ref(), Some(AllocationError::OutOfMemory(_))))
}
