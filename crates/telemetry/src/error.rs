//! Errors of statistics, logs and files.

use std::path::{Path, PathBuf};

use collective::CollectiveError;
use system::file_error::{FileContext, FileError};

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, TelemetryError>;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "messages name their fields")]
pub enum TelemetryError {
    /// Gathering statistics on rank 0 failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    #[error("the statistics from rank {rank} cannot be read: {reason}")]
    Decode { rank: usize, reason: String },
    #[error("the statistics of rank {rank} cannot be sent: {reason}")]
    Encode { rank: usize, reason: String },
    /// A file cannot be read or is damaged.
    #[error(transparent)]
    Unreadable(FileError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{variable}={text}: {reason}")]
    Filter { variable: &'static str, text: String, reason: String },
    #[error("line {line} is not a measured run: {reason}")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        reason: String,
    },
    /// The content of a file is invalid.
    #[error("{}: {source}", path.display())]
    In {
        path: PathBuf,
        #[source]
        source: Box<TelemetryError>,
    },
    #[error("this process already has a log")]
    SecondLog,
}

/// Turns an error of reading a file into [`TelemetryError::Unreadable`], with the file's path.
pub(crate) trait Unreadable<T> {
    fn unreadable(self, path: &Path) -> Result<T>;
}

impl<T, E: Into<std::io::Error>> Unreadable<T> for std::result::Result<T, E> {
    fn unreadable(self, path: &Path) -> Result<T> {
        self.context(path, "read it").map_err(TelemetryError::Unreadable)
    }
}

impl TelemetryError {
    /// Returns whether the user's input is at fault: a file or an environment variable.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        match self {
            TelemetryError::Unreadable(_) | TelemetryError::Filter { .. } | TelemetryError::Line { .. } => {
                true
            }
            TelemetryError::In { source, .. } => source.is_refused(),
            _ => false,
        }
    }
}
