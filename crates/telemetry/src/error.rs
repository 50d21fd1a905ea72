//! Errors of statistics, logs and files.

use std::path::{Path, PathBuf};

use collective::CollectiveError;

/// Result of a call of this crate.
pub type Result<T> = std::result::Result<T, TelemetryError>;

/// A failed call of this crate.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// Gathering statistics on rank 0 failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// A message is not statistics of this version.
    #[error("the statistics from rank {rank} cannot be read: {reason}")]
    Decode {
        /// Rank that sent the message.
        rank: usize,
        /// Reason.
        reason: String,
    },
    /// Statistics cannot be encoded as a message.
    #[error("the statistics of rank {rank} cannot be sent: {reason}")]
    Encode {
        /// Rank of the statistics.
        rank: usize,
        /// Reason.
        reason: String,
    },
    /// A file cannot be read, or is damaged.
    #[error("{}: cannot read it: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error, or the damage.
        #[source]
        source: std::io::Error,
    },
    /// A file cannot be written.
    #[error("{}: cannot {action}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Failed action, as in `create it`.
        action: &'static str,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The log filter is invalid.
    #[error("{variable}={text}: {reason}")]
    Filter {
        /// Environment variable of the filter.
        variable: &'static str,
        /// Value of the variable.
        text: String,
        /// Reason.
        reason: String,
    },
    /// A line is not a measured run.
    #[error("line {line} is not a measured run: {reason}")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// Reason.
        reason: String,
    },
    /// The content of a file is invalid.
    #[error("{}: {source}", path.display())]
    In {
        /// The file.
        path: PathBuf,
        /// Error in the content.
        #[source]
        source: Box<TelemetryError>,
    },
    /// The process already has a log.
    #[error("this process already has a log")]
    SecondLog,
}

impl TelemetryError {
    pub(crate) fn file(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| TelemetryError::File { path: path.to_owned(), action, source }
    }

    pub(crate) fn unreadable(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| TelemetryError::Unreadable { path: path.to_owned(), source }
    }

    /// Returns whether the input is wrong: a file or the environment.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        match self {
            TelemetryError::Unreadable { .. }
            | TelemetryError::Filter { .. }
            | TelemetryError::Line { .. } => true,
            TelemetryError::In { source, .. } => source.is_refused(),
            _ => false,
        }
    }
}
