//! `plimsoll replay`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Drive the caching allocator with recordings of PyTorch's and compare every counter, address and event
#[derive(Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    /// Recordings: traces (JSON) or vectors (JSON lines), plain or gzip-compressed
    #[arg(value_name = "TRACE", required = true)]
    traces: Vec<PathBuf>,
}

/// Prints a line per file. Exit status: 0 everything matches; 1 a mismatch; 2 a file is not a recording.
pub(crate) fn run(args: &ReplayArgs) -> ExitCode {
    let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr().lock());
    let (mut differs, mut unreadable) = (false, false);
    // The exit status is the result, so a closed standard output is not an error.
    for path in &args.traces {
        match memory::replay::replay(path) {
            Ok(report) => {
                differs |= report.mismatches > 0;
                let (operations, mismatches) = (report.operations, report.mismatches);
                let _ = writeln!(out, "{}: {operations} operations, {mismatches} mismatches", path.display());
                if let Some(first) = report.first {
                    let _ = writeln!(out, "    first: {first}");
                }
            }
            Err(error) => {
                unreadable = true;
                let _ = writeln!(err, "{}: {error}", path.display());
            }
        }
    }
    ExitCode::from(if unreadable { 2 } else { u8::from(differs) })
}
