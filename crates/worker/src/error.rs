//! Why a run did not start, or did not end well.

use std::path::PathBuf;

use autograd::AutogradError;
use checkpoint::CheckpointError;
use collective::CollectiveError;
use device::DeviceError;
use nn::NnError;
use parallel::ParallelError;
use tensor::TensorError;

use config::{ConfigError, Origin};

/// Result of a trainer's call.
pub type Result<T> = std::result::Result<T, TrainError>;

/// A run that was refused or that failed.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data is wrong.
    #[error("{origin}: data.paths: {source}")]
    Data {
        /// Where the configuration names it.
        origin: Origin,
        /// What is wrong.
        #[source]
        source: data::Error,
    },
    /// A micro-batch could not be read.
    #[error("the data: {0}")]
    Batch(#[from] data::Error),
    /// The command line, the environment or the machine does not allow this run.
    #[error("{0}")]
    Refused(String),
    /// A rank failed, and with it the run.
    #[error("rank {rank} failed: {reason}")]
    Rank {
        /// Which rank was first.
        rank: usize,
        /// What it said.
        reason: String,
    },
    /// A rank failed, and with it the run: which, where and why, and what every rank was last seen to do.
    #[error("{0}")]
    Failed(String),
    /// Another process of the job found what is wrong.
    #[error("{text}")]
    Elsewhere {
        /// Its exit status.
        status: u8,
        /// What it said, with its rank and host.
        text: String,
    },
    /// Another process of the job says what is wrong: there is nothing to print.
    #[error("another rank says why")]
    Said {
        /// The exit status of all.
        status: u8,
    },
    /// Where in the training a worker failed.
    #[error("step {}, micro-batch {micro_batch}: {source}", step + 1)]
    Step {
        /// Step, from 0; texts count from 1.
        step: u64,
        /// Micro-batch of the step, over all ranks, from 0.
        micro_batch: u64,
        /// What happened.
        #[source]
        source: Box<TrainError>,
    },
    /// A rank's device ran out of memory.
    #[error("{source}; {left}")]
    OutOfMemory {
        /// What was asked for, and where.
        #[source]
        source: Box<TrainError>,
        /// Where the state of its allocator was left.
        left: String,
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
    /// Training is done, and its last checkpoint could not be written.
    #[error("the last checkpoint was not written: {0}")]
    Unsaved(#[source] CheckpointError),
    /// A file of the run could not be written or read.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

impl TrainError {
    /// 2 where the command line, the configuration or the data is wrong, 1 where a run failed.
    pub fn exit_status(&self) -> u8 {
        match self {
            TrainError::Config(_)
            | TrainError::Data { .. }
            | TrainError::Refused(_)
            | TrainError::Checkpoint(_) => 2,
            TrainError::Elsewhere { status, .. } | TrainError::Said { status } => *status,
            _ => 1,
        }
    }

    /// Whether a device ran out of memory, or reached its limit.
    pub fn is_out_of_memory(&self) -> bool {
        let mut error: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(current) = error {
            if let Some(memory::AllocationError::OutOfMemory(_)) = current.downcast_ref() {
                return true;
            }
            error = current.source();
        }
        false
    }
}
