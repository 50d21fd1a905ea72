//! `plimsoll compare`.

use std::path::PathBuf;

use serde_json::json;

use crate::error::CliError;
use run::{CompareOptions, Comparison, RerunOptions};

use crate::output::{print, print_json};
use crate::outputs::{Force, Kind};

/// Check whether two runs are the same computation, and if not, find where they diverge
///
/// Compares settings, device and libraries, the hashes recorded by `telemetry.hashes`, losses, gradient norms
/// and the final weights. Exit status: 0 if everything compared is bit-identical, 1 if something differs.
#[derive(clap::Args, Debug)]
pub(crate) struct CompareArgs {
    /// Directories of two runs.
    #[arg(value_names = ["RUN_A", "RUN_B"], num_args = 2, required = true, action = clap::ArgAction::Set)]
    runs: Vec<PathBuf>,
    /// Retrain both from their nearest checkpoints to the step in which they differ, recording hashes at
    /// every step, to find the first operator that differs
    #[arg(long)]
    rerun: bool,
    /// Also write a page with the differences and both learning curves
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print one line of JSON instead
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    force: Force,
}

/// Runs the command: compares and prints.
///
/// # Errors
/// A directory is not a run, retraining fails, or the runs differ.
pub(crate) fn run(args: &CompareArgs) -> Result<(), CliError> {
    let [first, second] = args.runs.as_slice() else {
        return Err(CliError::Refused("compare takes two run directories".to_owned()));
    };
    let page = args.html.as_ref().map(|path| args.force.output("--html", path, Kind::Page)).transpose()?;
    let scratch = args.rerun.then(Scratch::create).transpose()?;
    let rerun = scratch.as_ref().map(|scratch| RerunOptions { directory: scratch.0.clone() });
    let comparison = run::compare([first, second], CompareOptions { rerun, ..CompareOptions::default() })?;
    if let Some(page) = page {
        page.write(&comparison.page().to_html())?;
    }
    match args.json {
        true => print_json(&line(&comparison))?,
        false => print(&comparison.to_string())?,
    }
    match comparison.is_same() {
        true => Ok(()),
        false => Err(CliError::Shown { status: 1 }),
    }
}

fn line(comparison: &Comparison) -> serde_json::Value {
    json!({
        "same": comparison.is_same(),
        "findings": comparison.findings(),
        "settings": comparison.settings,
        "software": comparison.software,
        "hashes": comparison.hashes,
        "metrics": comparison.metrics,
        "steps": comparison.steps,
        "weights_sha256": comparison.weights,
        "rerun": comparison.rerun,
    })
}

/// A temporary directory for retrained runs, deleted on drop.
#[derive(Debug)]
struct Scratch(PathBuf);

impl Scratch {
    /// Creates the directory.
    ///
    /// # Errors
    /// The directory cannot be created.
    fn create() -> Result<Self, CliError> {
        let path = std::env::temp_dir().join(format!("plimsoll-compare-{}", std::process::id()));
        let unwritable = |source| CliError::File { path: path.clone(), source };
        std::fs::create_dir(&path).map_err(unwritable)?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Links to checkpoints are deleted, not the checkpoints.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
