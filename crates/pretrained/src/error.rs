//! Folders that cannot be read or written, or that hold another model.

use std::io;
use std::path::{Path, PathBuf};

use checkpoint::CheckpointError;
use tensor::TensorError;

/// Result of reading or writing a folder.
pub type Result<T> = std::result::Result<T, PretrainedError>;

/// A folder that cannot be read or written, or that holds another model.
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
    /// The folder or a file of it is not what it should be.
    #[error("{}: {what}", path.display())]
    Refused {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong, in a sentence.
        what: String,
    },
    /// The weights to be written could not be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A tensor could not be made or filled.
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
