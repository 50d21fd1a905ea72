//! Failed operations of the file system, with the file and the operation.

use std::io;
use std::path::{Path, PathBuf};

/// A failed operation of the file system.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot {action}: {source}", path.display())]
pub struct FileError {
    /// The file or directory.
    pub path: PathBuf,
    /// The operation, as in `create it`.
    pub action: &'static str,
    /// The error of the operating system, or the damage.
    pub source: io::Error,
}

/// Adds the file and the operation to an error.
pub trait FileContext<T> {
    /// Names the file and the operation of an error.
    fn context(self, path: &Path, action: &'static str) -> Result<T, FileError>;
}

impl<T, E: Into<io::Error>> FileContext<T> for Result<T, E> {
    fn context(self, path: &Path, action: &'static str) -> Result<T, FileError> {
        self.map_err(|source| FileError { path: path.to_owned(), action, source: source.into() })
    }
}
