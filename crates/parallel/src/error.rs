//! Errors of data and pipeline parallelism.

use autograd::AutogradError;
use collective::CollectiveError;
use device::DeviceError;
use nn::NnError;
use tensor::TensorError;

use crate::pipeline::Action;

/// Result of a call of this crate.
pub type Result<T> = std::result::Result<T, ParallelError>;

/// A call of this crate that was refused or failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "messages name their fields")]
pub enum ParallelError {
    /// Numbers of ranks, lanes or micro-batches that do not fit together.
    #[error("{0}")]
    Grid(String),
    /// A use of a parameter for which backward produced no gradient.
    #[error("backward gave no gradient for {parameter}: the loss does not depend on it")]
    MissingGradient { parameter: String },
    /// A stage whose output does not depend on its input.
    #[error("backward gave no gradient for the input of stage {stage}: the loss does not depend on it")]
    MissingInputGradient {
        /// The stage, from 0.
        stage: usize,
    },
    /// A schedule with an action whose input does not exist; [`validate`](crate::pipeline::validate) refuses
    /// it.
    #[error("the schedule has {action} before its input exists")]
    Unsound { action: Action },
    /// Passes of a plan that did not repeat within the allocations that it may make.
    #[error("its passes had not repeated after {most} allocations")]
    PlanWork {
        /// Most allocations of a rank.
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
