//! `plimsoll replay`.

use std::path::PathBuf;

use crate::error::CliError;
use crate::output::{note, plural, print};
use telemetry::units::grouped;

/// Replay recordings of PyTorch's caching allocator and compare every counter, address and event
#[derive(Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    /// Recordings: traces (JSON) or vectors (JSON lines), plain or gzip-compressed
    #[arg(value_name = "TRACE", required = true)]
    traces: Vec<PathBuf>,
}

/// Runs the command: prints a line per file.
///
/// # Errors
/// A file is not a recording, a comparison fails, or output cannot be written.
pub(crate) fn run(args: &ReplayArgs) -> Result<(), CliError> {
    let (mut mismatches, mut unreadable) = (0, 0);
    for path in &args.traces {
        match memory::replay::replay(path) {
            Ok(report) => {
                mismatches += report.mismatches;
                let operations = report.operations;
                let differ = report.mismatches;
                let mut line = format!(
                    "{}: {} operation{}, {} mismatch{}",
                    path.display(),
                    grouped(operations as u64),
                    plural(operations),
                    grouped(differ as u64),
                    if differ == 1 { "" } else { "es" }
                );
                if let Some(first) = report.first {
                    line += &format!("\n    first: {first}");
                }
                print(&line)?;
            }
            Err(error) => {
                unreadable += 1;
                note(&format!("{}: {error}", path.display()));
            }
        }
    }
    match (unreadable, mismatches) {
        (0, 0) => Ok(()),
        (0, _) => Err(CliError::Shown { status: 1 }),
        _ => Err(CliError::Shown { status: 2 }),
    }
}
