//! Output files that take long to compute and must not overwrite anything.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use crate::error::CliError;

/// Creates `path` and writes the text that `make` returns. The file is created before `make` runs, so that a
/// path that cannot be written to is refused first, and removed if `make` fails.
///
/// `argument` names the file's option in messages. Errors: those of `make`; the file exists or cannot be
/// written.
pub(crate) fn fill(
    argument: &str,
    path: &Path,
    make: impl FnOnce() -> Result<String, CliError>,
) -> Result<(), CliError> {
    let refused =
        |error: std::io::Error| CliError::Refused(format!("{argument} {}: {error}", path.display()));
    let mut out = OpenOptions::new().write(true).create_new(true).open(path).map_err(refused)?;
    let filled = make().and_then(|text| out.write_all(text.as_bytes()).map_err(refused));
    if filled.is_err() {
        // The error above is the one to report.
        let _ = std::fs::remove_file(path);
    }
    filled
}
