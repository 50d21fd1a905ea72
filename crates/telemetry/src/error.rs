//! What can go wrong with statistics, logs and files.

use std::path::{Path, PathBuf};

use collective::CollectiveError;

/// Result of a call of this crate.
pub type Result<T> = std::result::Result<T, TelemetryError>;

/// A failed call of this crate.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The statistics did not reach rank 0.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// A message that holds no statistics of this version.
    #[error("the statistics from rank {rank} cannot be read: {reason}")]
    Decode {
        /// Rank that sent them.
        rank: usize,
        /// What is wrong with them.
        reason: String,
    },
    /// Statistics that do not fit into a message.
    #[error("the statistics of rank {rank} cannot be sent: {reason}")]
    Encode {
        /// Rank that took them.
        rank: usize,
        /// What is wrong with them.
        reason: String,
    },
    /// A file could not be written.
    #[error("{}: cannot {action}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// A log filter that cannot be understood.
    #[error("{variable}={text}: {reason}")]
    Filter {
        /// The environment variable it came from.
        variable: &'static str,
        /// Its value.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A line that holds no run.
    #[error("line {line} is no measured run: {reason}")]
    Line {
        /// Which, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// Something is wrong with what a file holds.
    #[error("{}: {source}", path.display())]
    In {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: Box<TelemetryError>,
    },
    /// The process has a log already.
    #[error("the log of this process is set up already")]
    SecondLog,
}

impl TelemetryError {
    pub(crate) fn file(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| TelemetryError::File { path: path.to_owned(), action, source }
    }
}
