//! `plimsoll report`.

use std::path::{Path, PathBuf};

use crate::error::CliError;
use run::report_run;

use crate::output::print;

/// Write an HTML page about a run: memory over a step, what is alive at the peak, schedule, losses and
/// throughput
///
/// The page needs no network and no other file.
#[derive(clap::Args, Debug)]
pub(crate) struct ReportArgs {
    /// The run's directory.
    run_dir: PathBuf,
    /// File of the page [default: report.html in the run's directory].
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Writes the page. Errors: the directory holds no run, or a file that cannot be read; the page cannot be
/// written.
pub(crate) fn run(args: &ReportArgs) -> Result<(), CliError> {
    let path = args.output.clone().unwrap_or_else(|| args.run_dir.join("report.html"));
    write_page(&path, &report_run(&args.run_dir)?.to_html())?;
    print(&path.display().to_string())
}

/// Writes a page, whole or not at all. Errors: `path` cannot be written.
pub(crate) fn write_page(path: &Path, page: &str) -> Result<(), CliError> {
    Ok(telemetry::run_files::atomic_write(path, page.as_bytes())?)
}
