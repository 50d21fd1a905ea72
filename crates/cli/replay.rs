//! `plimsoll replay TRACE…`: drives the allocator with recordings of another one.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// The arguments of `plimsoll replay`.
#[derive(Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    /// Recordings of an allocator: traces (JSON) or vectors (JSON lines), plain or gzip-compressed
    #[arg(value_name = "TRACE", required = true)]
    traces: Vec<PathBuf>,
}

/// Prints a line per file. 0: all as recorded; 1: something differs; 2: a file is no recording.
pub(crate) fn run(args: &ReplayArgs) -> ExitCode {
    let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr().lock());
    let (mut differs, mut unreadable) = (false, false);
    // A reader that goes away is no reason to fail, so what `writeln` returns is dropped.
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
