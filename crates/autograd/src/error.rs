//! Errors of recording and of backward.

use collective::CollectiveError;
use tensor::TensorError;

use crate::sharded::Placement;

/// Result of recording or backward.
pub type Result<T> = std::result::Result<T, AutogradError>;

/// An error of recording or backward.
#[derive(Debug, thiserror::Error)]
pub enum AutogradError {
    /// An operator failed.
    #[error("{operator}: {source}")]
    Operator {
        /// The operator's name, followed by `.backward` in backward.
        operator: String,
        /// Reason of the failure.
        #[source]
        source: TensorError,
    },
    /// A tensor operation outside any operator failed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A collective of an operator failed.
    #[error("{operator}: {source}")]
    Collective {
        /// The operator.
        operator: &'static str,
        /// Reason of the failure.
        #[source]
        source: CollectiveError,
    },
    /// A variable belongs to another tape.
    #[error("{operator}: an operand was recorded on another tape")]
    ForeignVariable {
        /// The operator that received the variable.
        operator: &'static str,
    },
    /// An operand has another number of blocks than expected.
    #[error("an operator has operands of different numbers of blocks: one has {expected}")]
    Blocks {
        /// Maximum number of blocks of the operand.
        expected: usize,
    },
    /// An operator that reads one block received a value of several blocks.
    #[error("an operator was called with a value that is divided among ranks or pieces: call it by `map`")]
    Divided,
    /// A value cannot change to this placement.
    #[error("a value that is {from:?} along the {axis} axis cannot become {to:?}")]
    Placement {
        /// The axis of the grid.
        axis: &'static str,
        /// The current placement.
        from: Placement,
        /// The requested placement.
        to: Placement,
    },
    /// Attention was called more often in a pass than there are caches.
    #[error("attention: this pass has no cache for the call: a model states the heads of each of its layers")]
    NoCache,
    /// Backward started from a variable that no gradient can reach.
    #[error("backward needs a variable that this tape recorded; this one depends on no weight and no leaf")]
    NotRecorded,
    /// The sink has no memory for a gradient.
    #[error("the gradient of use {use_id} has no target: {reason}")]
    NoTarget {
        /// Identifier of the parameter's use.
        use_id: u32,
        /// The sink's reason.
        reason: String,
    },
    /// A recomputed segment failed; the source names its operator.
    #[error("recomputation: {0}")]
    Recompute(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A hook failed, for example one that starts a reduction.
    #[error("a gradient hook failed: {0}")]
    Hook(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl From<device::DeviceError> for AutogradError {
    fn from(error: device::DeviceError) -> Self {
        AutogradError::Tensor(error.into())
    }
}
