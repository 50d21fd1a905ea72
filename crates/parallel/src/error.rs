//! Errors of data and pipeline parallelism.

use autograd::AutogradError;
use collective::CollectiveError;
use device::DeviceError;
use nn::NnError;
use tensor::TensorError;

use crate::pipeline::Action;

/// Result of a call of this crate.
pub type Result<T> = std::result::Result<T, ParallelError>;

/// A refused or failed call.
#[derive(Debug, thiserror::Error)]
pub enum ParallelError {
    /// Numbers of ranks, lanes or micro-batches that do not go together.
    #[error("{0}")]
    Grid(String),
    /// A use of a parameter whose gradient backward never gave.
    #[error("backward gave no gradient for {parameter}: it takes no part in the loss")]
    MissingGradient {
        /// The parameter's name.
        parameter: String,
    },
    /// A stage whose output does not depend on its input.
    #[error("backward gave no gradient for the input of stage {stage}: it takes no part in the loss")]
    MissingInputGradient {
        /// The stage, from 0.
        stage: usize,
    },
    /// A schedule whose action lacks its input: [`validate`](crate::pipeline::validate) refuses it.
    #[error("the schedule has {action} where nothing is there for it")]
    Unsound {
        /// The action there.
        action: Action,
    },
    /// A stage could not be run.
    #[error(transparent)]
    Model(#[from] NnError),
    /// Backward failed.
    #[error("backward: {0}")]
    Backward(#[from] AutogradError),
    /// A collective failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

impl From<DeviceError> for ParallelError {
    fn from(error: DeviceError) -> Self {
        ParallelError::Tensor(error.into())
    }
}

impl From<ParallelError> for AutogradError {
    fn from(error: ParallelError) -> Self {
        AutogradError::Hook(Box::new(error))
    }
}
