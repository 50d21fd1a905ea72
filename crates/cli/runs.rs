//! `plimsoll runs`.

use std::path::PathBuf;

use crate::error::CliError;
use run::{ListedRun, list_runs};
use telemetry::table::aligned;
use telemetry::units::{bytes, grouped};

use crate::output::{print, print_json};

/// Number of characters of a hash shown in the table.
const HASH: usize = 12;

/// List runs: state, steps, losses, throughput, peak memory, grid and the hash of the weights
#[derive(clap::Args, Debug)]
pub(crate) struct RunsArgs {
    /// Directory of runs, or one run.
    #[arg(default_value = "runs")]
    directory: PathBuf,
    /// Print a JSON list instead.
    #[arg(long)]
    json: bool,
}

/// Runs the command: lists and prints.
///
/// # Errors
/// The directory cannot be read.
pub(crate) fn run(args: &RunsArgs) -> Result<(), CliError> {
    let runs = list_runs(&args.directory)?;
    if args.json {
        return print_json(&runs);
    }
    if runs.is_empty() {
        return print(&format!("there are no runs in {}", args.directory.display()));
    }
    let header =
        ["run", "state", "steps", "loss", "best validation", "per second", "peak", "grid", "weights"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(runs.iter().map(row));
    print(&aligned(&rows, 2, &[1]))
}

fn row(run: &ListedRun) -> Vec<String> {
    let name = run.path.file_name().unwrap_or(run.path.as_os_str()).to_string_lossy().into_owned();
    if let Some(error) = &run.error {
        return vec![name, format!("{}: {error}", run.state)];
    }
    let loss = |loss: Option<f64>| loss.map_or_else(String::new, |loss| format!("{loss:.4}"));
    let hash = run.weights_sha256.as_deref().unwrap_or_default();
    vec![
        name,
        run.state.to_owned(),
        format!("{} of {}", grouped(run.steps), grouped(run.of_steps)),
        loss(run.loss),
        loss(run.best_validation_loss),
        // A throughput as a whole number.
        run.tokens_per_second.map_or_else(String::new, |speed| grouped(speed.round() as u64)),
        run.peak_allocated_bytes.map_or_else(String::new, bytes),
        run.grid.clone(),
        hash.chars().take(HASH).collect(),
    ]
}
