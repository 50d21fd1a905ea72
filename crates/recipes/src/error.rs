//! Errors of recipes.

use std::path::PathBuf;

use config::ConfigError;
use plan::PlanError;
use telemetry::units::{bytes, grouped};

/// Result type of this crate.
pub type Result<T> = std::result::Result<T, RecipeError>;

/// Error of a configuration that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// The model, the data or a file of arguments is none that a configuration can be made for.
    #[error("{0}")]
    Refused(String),
    /// The configuration that was made is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data cannot be read.
    #[error(transparent)]
    Data(#[from] data::Error),
    /// The run could not be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Nothing fits the device.
    #[error(
        "the run does not fit on {device}: the nearest configuration, with {settings}, lacks {} bytes ({}); \
         it needs {} of {}",
        grouped(needs.saturating_sub(*available)),
        bytes(needs.saturating_sub(*available)),
        bytes(*needs),
        bytes(*available)
    )]
    TooLarge {
        /// Model of the device.
        device: String,
        /// Settings of the nearest configuration.
        settings: String,
        /// Bytes that it needs.
        needs: u64,
        /// Bytes of the device that a run can use.
        available: u64,
    },
    /// A file of arguments cannot be read.
    #[error("{path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

impl RecipeError {
    /// Exit status of the program: 1 if nothing fits or a rank failed, else 2.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        match self {
            RecipeError::TooLarge { .. } => 1,
            RecipeError::Plan(error) => error.exit_status(),
            RecipeError::Refused(_)
            | RecipeError::Config(_)
            | RecipeError::Data(_)
            | RecipeError::Unreadable { .. } => 2,
        }
    }
}
