//! Errors of data and pipeline parallelism.

use autograd::AutogradError;
use collective::CollectiveError;
use device::DeviceError;
use nn::NnError;
use tensor::TensorError;

use crate::pipeline::Action;

/// Result of a function of this crate.
pub type Result<T> = std::result::Result<T, ParallelError>;

/// An error of data or pipeline parallelism.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "messages name their fields")]
pub enum ParallelError {
    /// Numbers of ranks, lanes or micro-batches do not fit together.
    #[error("{0}")]
    Grid(String),
    /// Backward produced no gradient for a use of a parameter.
    #[error("backward gave no gradient for {parameter}: the loss does not depend on it")]
    MissingGradient { parameter: String },
    /// A stage's output does not depend on its input.
    #[error("backward gave no gradient for the input of stage {stage}: the loss does not depend on it")]
    MissingInputGradient {
        /// The stage, from 0.
        stage: usize,
    },
    /// An action's input does not exist; [`validate`](crate::pipeline::validate) rejects such schedules.
    #[error("the schedule has {action} before its input exists")]
    Unsound { action: Action },
    /// No repetition of passes was found within the allowed number of allocations of a plan.
    #[error("its passes had not repeated after {most} allocations")]
    PlanWork {
        /// Maximum number of allocations of a rank.
        most: u64,
    },
    /// A stage failed.
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
