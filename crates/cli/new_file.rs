//! Files that take a while to fill, and that nothing may be lost for.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use worker::TrainError;

/// Fills a file that is not there yet with what `make` comes to, for the argument called `name`. Errors: those of `make`; a
/// file that is there, or cannot be written.
pub(crate) fn fill(
    name: &str,
    path: &Path,
    make: impl FnOnce() -> Result<String, TrainError>,
) -> Result<(), TrainError> {
    let failed = |error: std::io::Error| TrainError::Refused(format!("{name} {}: {error}", path.display()));
    // Before anything is measured: a file that is there may be a configuration.
    let mut out = OpenOptions::new().write(true).create_new(true).open(path).map_err(failed)?;
    let filled = make().and_then(|text| out.write_all(text.as_bytes()).map_err(failed));
    if filled.is_err() {
        // What fails leaves nothing behind.
        let _ = std::fs::remove_file(path);
    }
    filled
}
