//! Errors of tokenizing; each names the file.

use std::io;
use std::path::{Path, PathBuf};

/// Result type of tokenizing.
pub type Result<T> = std::result::Result<T, Error>;

/// Error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The files or the tokenizer are wrong.
    #[error(transparent)]
    Data(#[from] data::Error),
    /// An input that cannot be tokenized.
    #[error("{}{}: {reason}", path.display(), line.map(|line| format!(":{line}")).unwrap_or_default())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The line of JSON lines, or the row of Parquet, from 1.
        line: Option<u64>,
        /// The problem.
        reason: String,
    },
    /// Options that contradict each other.
    #[error("{0}")]
    Refused(String),
    /// An operation of the file system failed.
    #[error("{}: cannot {action}: {source}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The operation.
        action: &'static str,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn file(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File { path: path.to_owned(), action, source }
    }

    /// Returns whether the error is due to the command line or the data instead of the machine.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        use io::ErrorKind as Kind;
        // The last three are of files that are not what their names say.
        const REFUSED: [io::ErrorKind; 7] = [
            Kind::IsADirectory,
            Kind::NotADirectory,
            Kind::NotFound,
            Kind::PermissionDenied,
            Kind::InvalidData,
            Kind::InvalidInput,
            Kind::UnexpectedEof,
        ];
        match self {
            Self::File { source, .. } => REFUSED.contains(&source.kind()),
            _ => true,
        }
    }
}
