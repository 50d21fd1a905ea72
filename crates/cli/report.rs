//! `plimsoll report`.

use std::path::PathBuf;

use crate::error::CliError;
use run::report_run;

use crate::output::print;
use crate::outputs::{Force, Kind};

/// Write an HTML page about a run: memory over a step, memory at the peak, schedule, losses and throughput
///
/// The page is self-contained: it needs no network and no other file.
#[derive(clap::Args, Debug)]
pub(crate) struct ReportArgs {
    /// Run directory.
    run_dir: PathBuf,
    /// Directories of further runs, whose learning curves are drawn beside the run's own.
    #[arg(value_name = "RUN_DIR")]
    others: Vec<PathBuf>,
    /// File to write [default: report.html in the run directory].
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
}

/// Runs the command: writes the page.
///
/// # Errors
/// The directory is not a run, a file cannot be read, or the page cannot be written.
pub(crate) fn run(args: &ReportArgs) -> Result<(), CliError> {
    let option = if args.output.is_some() { "--output" } else { "" };
    let path = args.output.clone().unwrap_or_else(|| args.run_dir.join("report.html"));
    let report = report_run(&args.run_dir, &args.others)?;
    args.force.output(option, &path, Kind::Page)?.write(&report.to_html())?;
    print(&path.display().to_string())
}
