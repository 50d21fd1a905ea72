//! Errors of file operations, with the path and the operation.

use std::io;
use std::path::{Path, PathBuf};

/// A failed file operation.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot {action}: {source}", path.display())]
pub struct FileError {
    /// Path of the file or directory.
    pub path: PathBuf,
    /// The operation, such as `create it`.
    pub action: &'static str,
    /// The operating system's error, or the damage.
    pub source: io::Error,
}

/// Adds the path and the operation to an error.
pub trait FileContext<T> {
    /// Adds the path and the operation to an error.
    fn context(self, path: &Path, action: &'static str) -> Result<T, FileError>;
}

impl<T, E: Into<io::Error>> FileContext<T> for Result<T, E> {
    fn context(self, path: &Path, action: &'static str) -> Result<T, FileError> {
        self.map_err(|source| FileError { path: path.to_owned(), action, source: source.into() })
    }
}
