//! `plimsoll report`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use run::report_run;
use worker::TrainError;

/// One HTML page of a run: its memory over a step, what was alive at the peak, its schedule, losses and throughput
///
/// The page needs no network and no other file.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// The run's directory.
    run_dir: PathBuf,
    /// Where the page goes [default: report.html in the run's directory].
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Writes the page. 0: done; 1: it cannot be written; 2: there is no run, or one of its files holds something else.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let path = arguments.output.clone().unwrap_or_else(|| arguments.run_dir.join("report.html"));
    let written = report_run(&arguments.run_dir).and_then(|report| write_page(&path, &report.to_html()));
    match written {
        Ok(()) => {
            // Nobody reads: there is nothing else to do.
            let _ = writeln!(std::io::stdout(), "{}", path.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "plimsoll: {error}");
            ExitCode::from(error.exit_status())
        }
    }
}

/// Writes a page, whole or not at all. Errors: a path that cannot be written to.
pub(crate) fn write_page(path: &Path, page: &str) -> Result<(), TrainError> {
    Ok(telemetry::run_files::atomic_write(path, page.as_bytes())?)
}
