//! `plimsoll train`.

use std::path::PathBuf;

use crate::error::CliError;
use config::RunConfig;
use run::{RunOptions, Startup};
use telemetry::log::Log;
use worker::DeviceChoice;

use crate::output::print;

/// Train a model
///
/// Plans the memory of every rank, trains, and prints the memory and time of every rank; for text, also a
/// sample. The run directory holds the resolved configuration, metrics.jsonl (a line per step), summary.json,
/// logs, traces of memory and, with [checkpoint] every, checkpoints.
#[derive(clap::Args, Debug)]
pub(crate) struct TrainArgs {
    /// The configuration; without one, the built-in quickstart.
    config: Option<PathBuf>,
    /// Override a key of the configuration, as in --set train.steps=100; may be repeated.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// Number of ranks, as threads of this process; must equal parallel.data × parallel.pipeline, which is
    /// the default.
    #[arg(long, value_name = "N")]
    ranks: Option<usize>,
    /// Device to train on: cpu; cuda (NVIDIA GPUs); meta (no device: memory is counted, nothing is computed);
    /// or auto, GPUs if there are any and the CPU otherwise.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: String,
    /// Directory for the run's files [default: runs/<configuration>-<time>].
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Continue from the newest checkpoint in --run-dir, or from the beginning if there is none. Without
    /// CONFIG, the run's own configuration is used. The grid of ranks may differ.
    #[arg(long, requires = "run_dir")]
    resume: bool,
    /// Start without planning, and so without checking that the run fits.
    #[arg(long)]
    no_plan: bool,
}

/// Trains and prints the report of the run.
pub(crate) fn run(args: &TrainArgs) -> Result<(), CliError> {
    let mut startup = Startup::begin()?;
    let prepared = prepare(args, &startup);
    let (config, options) = startup.agree(prepared)?;
    match run::train_as(startup, config, options)? {
        Some(report) => print(&report.to_string()),
        None => Ok(()),
    }
}

fn prepare(args: &TrainArgs, startup: &Startup) -> Result<(RunConfig, RunOptions), CliError> {
    let config = match (&args.config, &args.run_dir) {
        (Some(path), _) => RunConfig::load(path, &args.set)?,
        (None, Some(run_dir)) if args.resume => RunConfig::load(&run_dir.join("config.toml"), &args.set)?,
        (None, _) => RunConfig::quickstart(&args.set)?,
    };
    let log = Log::new();
    log.install()?;
    let name = args.config.as_ref().and_then(|path| path.file_stem()).map(|stem| stem.to_string_lossy());
    let options = RunOptions {
        device: DeviceChoice::from_name(&args.device)?,
        ranks: args.ranks,
        run_dir: args.run_dir.clone(),
        resume: args.resume,
        name: name.map_or_else(|| "quickstart".to_owned(), |stem| stem.into_owned()),
        interrupt: startup.interrupt()?,
        log: Some(log),
        quiet: false,
        no_plan: args.no_plan,
        ..RunOptions::default()
    };
    Ok((config, options))
}
