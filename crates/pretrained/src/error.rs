//! Errors of folders that cannot be read or written, or that contain another model.

use std::io;
use std::path::{Path, PathBuf};

use checkpoint::CheckpointError;
use tensor::TensorError;

/// Result type of reading or writing a folder.
pub type Result<T> = std::result::Result<T, PretrainedError>;

/// Error of a folder that cannot be read or written, or that contains another model.
#[derive(Debug, thiserror::Error)]
pub enum PretrainedError {
    /// The operating system refused.
    #[error("{}: cannot {doing}: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The attempted action.
        doing: &'static str,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The folder or one of its files is invalid.
    #[error("{}: {what}", path.display())]
    Refused {
        /// The file or folder.
        path: PathBuf,
        /// The fault, in a sentence.
        what: String,
    },
    /// The weights to be written could not be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A tensor could not be allocated or filled.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

impl PretrainedError {
    pub(crate) fn file(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| PretrainedError::File { path: path.to_owned(), doing, source }
    }

    pub(crate) fn refused(path: &Path, what: impl Into<String>) -> Self {
        PretrainedError::Refused { path: path.to_owned(), what: what.into() }
    }
}
