//! Errors of models.

use autograd::AutogradError;
use tensor::TensorError;

/// Result of building or running a model.
pub type Result<T> = std::result::Result<T, NnError>;

/// Error of building or running a model.
#[derive(Debug, thiserror::Error)]
pub enum NnError {
    /// An operator of the layer at path `module` failed.
    #[error("{module}: {source}")]
    Module {
        /// Path of the layer.
        module: String,
        /// The operator's error.
        #[source]
        source: Box<NnError>,
    },
    /// An operator on the tape failed.
    #[error(transparent)]
    Autograd(#[from] AutogradError),
    /// A tensor operation failed, such as an allocation.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A parameter or buffer does not exist, or its name is already used.
    #[error("{name}: {problem}")]
    Parameter {
        /// Name of the parameter or buffer.
        name: String,
        /// Description of the problem.
        problem: &'static str,
    },
    /// No model can have these sizes.
    #[error("{0}")]
    Sizes(String),
    /// A parameter cannot be sharded in this way.
    #[error("{0}")]
    Sharding(String),
    /// A stage got the wrong kind of input, for example tokens in the middle of a pipeline.
    #[error("this stage takes {expected}")]
    StageInput {
        /// Description of the expected input.
        expected: &'static str,
    },
    /// Scores or a loss were requested from a stage other than the last.
    #[error("this stage has no output head: only the last one has")]
    NotLast,
}

impl NnError {
    /// Returns whether the configured sizes and settings are invalid for every model.
    pub fn is_refused(&self) -> bool {
        match self {
            NnError::Sizes(_) => true,
            NnError::Module { source, .. } => source.is_refused(),
            _ => false,
        }
    }

    /// Prepends the name of the enclosing layer to the error's path.
    #[must_use]
    pub fn inside(self, name: &str) -> Self {
        match self {
            NnError::Module { module, source } => {
                NnError::Module { module: format!("{name}.{module}"), source }
            }
            other => NnError::Module { module: name.to_owned(), source: Box::new(other) },
        }
    }
}
