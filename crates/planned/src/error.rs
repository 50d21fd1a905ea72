//! Errors of comparing a run with its plan.

use std::path::PathBuf;

use collective::CollectiveError;
use telemetry::TelemetryError;

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, PlannedError>;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum PlannedError {
    /// Differences could not be gathered from the ranks.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// A rank's differences are not valid JSON.
    #[error("what a rank found: {0}")]
    Findings(#[from] serde_json::Error),
    /// Traces could not be encoded.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// The trace file could not be written.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The thread that writes the traces panicked.
    #[error("the writer of traces panicked")]
    Writer,
}
