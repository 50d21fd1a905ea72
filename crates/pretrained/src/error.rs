//! Errors of folders that cannot be read or written, or that contain another model.

use std::path::{Path, PathBuf};

use checkpoint::CheckpointError;
use system::file_error::FileError;
use tensor::TensorError;

/// Result type of reading or writing a folder.
pub type Result<T> = std::result::Result<T, PretrainedError>;

/// Error of a folder that cannot be read or written, or that contains another model.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "messages name their fields")]
pub enum PretrainedError {
    /// An operation of the file system failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The folder or one of its files is invalid.
    #[error("{}: {what}", path.display())]
    Refused { path: PathBuf, what: String },
    /// The weights to be written could not be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A tensor could not be allocated or filled.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

impl PretrainedError {
    pub(crate) fn refused(path: &Path, what: impl Into<String>) -> Self {
        PretrainedError::Refused { path: path.to_owned(), what: what.into() }
    }
}
