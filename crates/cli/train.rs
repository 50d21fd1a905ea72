//! `plimsoll train`.

use std::path::{Path, PathBuf};

use clap::ValueEnum;

use crate::arguments::count;
use crate::error::CliError;
use config::RunConfig;
use run::{RunOptions, Startup};
use telemetry::log::Log;
use worker::DeviceChoice;

use crate::model::skips_invalid;
use crate::output::print;
use crate::step::Step;

/// Train a model
///
/// Plans the memory of every rank, trains, and prints the memory and time of every rank; for text, also a
/// sample. The run directory holds the resolved configuration, metrics.jsonl (a line per step), summary.json,
/// logs, memory traces and, with [checkpoint] every, checkpoints.
#[derive(clap::Args, Debug)]
pub(crate) struct TrainArgs {
    /// Configuration file; without one, the built-in quickstart.
    config: Option<PathBuf>,
    /// Override a key of the configuration, as in --set train.steps=100; may be repeated.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// Skip and count images that cannot be decoded and lines that are not conversations or preference pairs,
    /// instead of failing: --set data.skip_invalid=true.
    #[arg(long)]
    skip_invalid: bool,
    /// Number of ranks, as threads of this process; must equal the configured number, which is the default.
    #[arg(long, value_name = "N", value_parser = count::<usize>)]
    ranks: Option<usize>,
    /// Device to train on: cpu; cuda (NVIDIA GPUs); meta (counts memory and computes nothing); or auto (GPUs
    /// if there are any, else the CPU).
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub(crate) device: String,
    /// Directory for the run's files [default: runs/<configuration>-<time>].
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,
    /// Resume from the newest checkpoint in --run-dir, or start from the beginning if there is none. Without
    /// CONFIG, the run's own configuration is used. Keys that affect the bits of every step may not change;
    /// the grid of ranks, the number of steps, the learning rate and others may.
    #[arg(long, requires = "run_dir")]
    pub(crate) resume: bool,
    /// Start a new run with the weights of a checkpoint: a directory step-N, or a run, whose newest
    /// checkpoint is used. Without CONFIG, that run's configuration is used.
    #[arg(long, value_name = "CHECKPOINT")]
    pub(crate) from: Option<PathBuf>,
    /// Use the checkpoint of step N, or "best", instead of the newest. Applies to --from, else to --resume,
    /// which then moves later checkpoints aside.
    #[arg(long, value_name = "N")]
    step: Option<Step>,
    /// Start without planning, and therefore without checking that the run fits.
    #[arg(long)]
    no_plan: bool,
    /// Also print tables of every rank's memory and time at the end of fine-tuning. Other runs always do.
    #[arg(long, value_enum, value_name = "TABLES")]
    report: Option<Tables>,
}

/// Tables to print at the end of a run.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Tables {
    /// Memory and time of every rank.
    Memory,
}

/// Runs the command: trains and prints the report of the run.
pub(crate) fn run(args: &TrainArgs) -> Result<(), CliError> {
    let mut startup = Startup::begin()?;
    startup.begins("read its configuration");
    let prepared = prepare(args, &startup);
    let (config, options) = startup.agree(prepared)?;
    match run::train_as(startup, config, options)? {
        Some(mut report) => {
            report.shows_tables = report.tuned.is_none() || args.report.is_some();
            print(&report.to_string())?;
            match report.stopped_by.status() {
                0 => Ok(()),
                status => Err(CliError::Shown { status }),
            }
        }
        None => Ok(()),
    }
}

fn prepare(args: &TrainArgs, startup: &Startup) -> Result<(RunConfig, RunOptions), CliError> {
    if args.step.is_some() && !args.resume && args.from.is_none() {
        let text = "--step: it picks a checkpoint for --resume or --from, and neither is there";
        return Err(CliError::Refused(text.to_owned()));
    }
    let run_path = args.from.as_deref().or(args.run_dir.as_deref()).unwrap_or(Path::new("."));
    let step = args.step.map(|step| step.number(run_path)).transpose()?;
    let config = configuration(args)?;
    let log = Log::new();
    log.install()?;
    let name = args.config.as_ref().and_then(|path| path.file_stem()).map(|stem| stem.to_string_lossy());
    let options = RunOptions {
        device: DeviceChoice::from_name(&args.device)?,
        ranks: args.ranks,
        run_dir: args.run_dir.clone(),
        resume: args.resume,
        from: args.from.clone(),
        step,
        name: name.map_or_else(|| "quickstart".to_owned(), |stem| stem.into_owned()),
        interrupt: startup.interrupt()?,
        log: Some(log),
        quiet: false,
        sampler: Some(inference::sampler()),
        no_plan: args.no_plan,
        ..RunOptions::default()
    };
    Ok((config, options))
}

/// Reads the configuration file, else the configuration of the run that is resumed or used by `--from`, else
/// the built-in one.
///
/// # Errors
/// The configuration is invalid, or there is no such run.
pub(crate) fn configuration(args: &TrainArgs) -> Result<RunConfig, CliError> {
    let sets = [args.set.clone(), skips_invalid(args.skip_invalid)].concat();
    let of_run = |run_dir: &Path| run::configuration_of(run_dir, &sets);
    // The run to resume may not have started yet.
    let resumed = args.run_dir.as_deref().filter(|_| args.resume);
    let resumed = resumed.filter(|run_dir| args.from.is_none() || run_dir.join("config.toml").exists());
    Ok(match (&args.config, resumed, &args.from) {
        (Some(path), _, _) => RunConfig::load(path, &sets)?,
        (None, Some(run_dir), _) => of_run(run_dir)?,
        (None, None, Some(from)) => of_run(&run::run_of(from))?,
        (None, None, None) => RunConfig::quickstart(&sets)?,
    })
}
