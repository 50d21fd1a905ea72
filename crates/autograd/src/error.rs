//! Errors of recording and of backward.

use collective::CollectiveError;
use tensor::TensorError;

use crate::sharded::Placement;

/// Result of recording or of backward.
pub type Result<T> = std::result::Result<T, AutogradError>;

/// A refused or failed call.
#[derive(Debug, thiserror::Error)]
pub enum AutogradError {
    /// An operator failed.
    #[error("{operator}: {source}")]
    Operator {
        /// The operator, with `.backward` while differentiating.
        operator: String,
        /// Reason of the failure.
        #[source]
        source: TensorError,
    },
    /// A tensor call outside any operator failed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// An operator that communicates failed.
    #[error("{operator}: {source}")]
    Collective {
        /// The operator.
        operator: &'static str,
        /// Reason of the failure.
        #[source]
        source: CollectiveError,
    },
    /// A variable of another tape.
    #[error("{operator}: an operand was recorded on another tape")]
    ForeignVariable {
        /// The operator that received it.
        operator: &'static str,
    },
    /// Operands that are divided in another way.
    #[error("an operator has operands of different numbers of blocks: one has {expected}")]
    Blocks {
        /// The most blocks of an operand.
        expected: usize,
    },
    /// An operator that read one block of a value of several.
    #[error("an operator was called with a value that is divided among ranks or pieces: call it by `map`")]
    Divided,
    /// A placement that a value cannot change to.
    #[error("a value that is {from:?} along the {axis} axis cannot become {to:?}")]
    Placement {
        /// The axis.
        axis: &'static str,
        /// The placement.
        from: Placement,
        /// The placement that was asked for.
        to: Placement,
    },
    /// A call of attention in a pass that has no cache left for it.
    #[error("attention: this pass has no cache for the call: a model states the heads of each of its layers")]
    NoCache,
    /// Backward from a variable without a gradient path.
    #[error("backward needs a variable that this tape recorded; this one depends on no weight and no leaf")]
    NotRecorded,
    /// A sink has no target for a gradient.
    #[error("the gradient of use {use_id} has no target: {reason}")]
    NoTarget {
        /// The use.
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
