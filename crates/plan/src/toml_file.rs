//! TOML files other than configurations. Errors are one sentence with the line.

use std::path::Path;

use serde::de::DeserializeOwned;
use system::input;

use crate::error::{PlanError, Result};

/// Maximum size of a file in bytes.
const MOST_BYTES: u64 = 16 << 20;

/// Reads a file. Returns its text, and its name for errors.
pub(crate) fn read(path: &Path) -> Result<(String, String)> {
    let name = path.to_string_lossy().into_owned();
    let unreadable = |error| PlanError::Refused(format!("{name} cannot be read: {error}"));
    Ok((input::read_text(path, MOST_BYTES).map_err(unreadable)?, name))
}

/// Parses TOML; `name` is the file's name in errors.
///
/// # Errors
/// The TOML is invalid, or has unknown keys or wrong types.
pub(crate) fn parse<T: DeserializeOwned>(text: &str, name: &str) -> Result<T> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        let message = error.message().lines().collect::<Vec<_>>().join("; ");
        PlanError::Refused(format!("{name}:{line}: {message}"))
    })
}
