//! `plimsoll train`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use config::RunConfig;
use run::{RunOptions, Startup, TrainReport};
use telemetry::log::Log;
use worker::{DeviceChoice, TrainError};

/// Train a model
///
/// Reads CONFIG.toml, says what each rank will use, trains, and ends with the memory of every rank and, for text, a
/// sample. A run directory holds the resolved configuration, metrics.jsonl (a line per step), summary.json, logs and, if
/// the configuration says [checkpoint] every, checkpoints.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// The configuration; without one, the built-in quickstart.
    config: Option<PathBuf>,
    /// Override a key of the configuration, as in --set train.steps=100; may be repeated.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// Ranks, as threads of this process; must be parallel.data × parallel.pipeline, which is also the default.
    #[arg(long, value_name = "N")]
    ranks: Option<usize>,
    /// What to compute on: cpu, cuda (an NVIDIA GPU), meta (nothing: memory is counted and no number computed), or auto: the
    /// GPU where there is one.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: String,
    /// Where the run's files go [default: runs/<configuration>-<time>].
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Go on from the newest checkpoint in --run-dir, or from the beginning where there is none. Without CONFIG, with the
    /// run's own configuration. The grid of ranks may be another one.
    #[arg(long, requires = "run_dir")]
    resume: bool,
    /// Start without planning first, and so without knowing that the run fits.
    #[arg(long)]
    no_plan: bool,
}

/// Trains and prints; the exit status tells how it went.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match train(arguments) {
        Ok(report) => report.map_or(ExitCode::SUCCESS, |report| print(&report)),
        Err(error) => {
            if !matches!(error, TrainError::Said { .. }) {
                let _ = writeln!(std::io::stderr(), "plimsoll: {error}");
            }
            ExitCode::from(error.exit_status())
        }
    }
}

fn train(arguments: &Arguments) -> Result<Option<TrainReport>, TrainError> {
    let mut startup = Startup::begin()?;
    let prepared = prepare(arguments, &startup);
    let (config, options) = startup.agree(prepared)?;
    run::train_as(startup, config, options)
}

fn prepare(arguments: &Arguments, startup: &Startup) -> Result<(RunConfig, RunOptions), TrainError> {
    let config = match (&arguments.config, &arguments.run_dir) {
        (Some(path), _) => RunConfig::load(path, &arguments.set)?,
        (None, Some(run_dir)) if arguments.resume => {
            RunConfig::load(&run_dir.join("config.toml"), &arguments.set)?
        }
        (None, _) => RunConfig::quickstart(&arguments.set)?,
    };
    let log = Log::new();
    log.install()?;
    let name = arguments.config.as_ref().and_then(|path| path.file_stem()).map(|stem| stem.to_string_lossy());
    let options = RunOptions {
        device: DeviceChoice::from_name(&arguments.device)?,
        ranks: arguments.ranks,
        run_dir: arguments.run_dir.clone(),
        resume: arguments.resume,
        name: name.map_or_else(|| "quickstart".to_owned(), |stem| stem.into_owned()),
        interrupt: startup.interrupt()?,
        log: Some(log),
        quiet: false,
        no_plan: arguments.no_plan,
        ..RunOptions::default()
    };
    Ok((config, options))
}

fn print(report: &TrainReport) -> ExitCode {
    match writeln!(std::io::stdout(), "{report}") {
        Ok(()) => ExitCode::SUCCESS,
        // Nobody reads: the files are written all the same.
        Err(_) => ExitCode::SUCCESS,
    }
}
