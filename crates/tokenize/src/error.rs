//! Errors of tokenizing; each message names the file.

use std::io;
use std::path::PathBuf;

use system::file_error::FileError;

/// Result type of tokenizing.
pub type Result<T> = std::result::Result<T, Error>;

/// Error of this crate.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "messages name their fields")]
pub enum Error {
    /// The files or the tokenizer are wrong.
    #[error(transparent)]
    Data(#[from] data::Error),
    /// An input that cannot be tokenized.
    #[error("{}{}: {reason}", path.display(), line.map(|line| format!(":{line}")).unwrap_or_default())]
    Invalid {
        path: PathBuf,
        /// Line of a JSON lines file, or row of a Parquet file, from 1.
        line: Option<u64>,
        reason: String,
    },
    #[error("{0}")]
    Refused(String),
    /// An operation of the file system failed.
    #[error(transparent)]
    File(#[from] FileError),
}

impl Error {
    /// Returns whether the command line or the data caused the error, and not the machine.
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
            Self::File(failed) => REFUSED.contains(&failed.source.kind()),
            _ => true,
        }
    }
}
