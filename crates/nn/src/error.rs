//! Errors of models.

use autograd::AutogradError;
use tensor::TensorError;

/// Result type of models.
pub type Result<T> = std::result::Result<T, NnError>;

/// Error of building or running a model.
#[derive(Debug, thiserror::Error)]
pub enum NnError {
    /// An operator failed; `module` is the path of the layer that called it.
    #[error("{module}: {source}")]
    Module {
        /// Path of the layer.
        module: String,
        /// The operator's error.
        #[source]
        source: Box<NnError>,
    },
    /// A recorded operator failed.
    #[error(transparent)]
    Autograd(#[from] AutogradError),
    /// A tensor could not be allocated.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A parameter or buffer that does not exist, or whose name is used already.
    #[error("{name}: {problem}")]
    Parameter {
        /// The parameter's or buffer's name.
        name: String,
        /// The problem.
        problem: &'static str,
    },
    /// Sizes of which no model can be built.
    #[error("{0}")]
    Sizes(String),
    /// A parameter that cannot be divided so.
    #[error("{0}")]
    Sharding(String),
    /// An input of the wrong kind for a stage: tokens in the middle of a pipeline, for example.
    #[error("this stage takes {expected}")]
    StageInput {
        /// The expected input.
        expected: &'static str,
    },
    /// Scores or a loss were requested from a stage that is not the last.
    #[error("this stage has no output head: only the last one has")]
    NotLast,
}

impl NnError {
    /// Returns whether no model has the configured sizes and settings.
    pub fn is_refused(&self) -> bool {
        match self {
            NnError::Sizes(_) => true,
            NnError::Module { source, .. } => source.is_refused(),
            _ => false,
        }
    }

    /// Adds the name of the enclosing layer.
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
