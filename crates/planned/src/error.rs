//! Errors of the comparison of a run with its plan.

use std::path::PathBuf;

use collective::CollectiveError;
use telemetry::TelemetryError;

/// Result of a call of this crate.
pub type Result<T> = std::result::Result<T, PlannedError>;

/// A failed call of this crate.
#[derive(Debug, thiserror::Error)]
pub enum PlannedError {
    /// Findings could not be gathered.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// Findings are not valid JSON.
    #[error("what a rank found: {0}")]
    Findings(#[from] serde_json::Error),
    /// Traces could not be encoded.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// The file of the traces could not be written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The thread that wrote the traces panicked.
    #[error("the writer of traces panicked")]
    Writer,
}
