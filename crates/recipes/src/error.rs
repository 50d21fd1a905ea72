//! Errors of recipes.

use std::path::PathBuf;

use config::ConfigError;
use plan::PlanError;
use telemetry::units::{bytes, grouped};

/// Result type of this crate.
pub type Result<T> = std::result::Result<T, RecipeError>;

/// An error of creating a configuration.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// No configuration can be created for this model, data or file of arguments.
    #[error("{0}")]
    Refused(String),
    /// The created configuration is invalid.
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
        /// Bytes that this configuration needs.
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
    /// Returns the program's exit status: 1 if nothing fits or a rank failed, else 2.
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
