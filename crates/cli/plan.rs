//! `plimsoll plan`.

use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bench::describe_device;
use clap::builder::RangedU64ValueParser;
use config::{PartitionPolicy, RunConfig};
use plan::{
    PlanOptions, PlanTarget, Proposal, Searched, Try, plan_page, plan_run, propose, search_largest,
    timed_divisions,
};
use telemetry::units::parse_bytes;
use worker::TrainError;

use crate::new_file;
use crate::plan_schedule::{self, ScheduleArgs};
use crate::profile;
use crate::report::write_page;

/// Say what each rank of a run will use, to the byte, without running it
///
/// Runs the real worker of every kind of rank with nothing behind its memory, and prints what each rank will allocate,
/// reserve and peak at, what lives there at the peak, and whether it fits. A run of that configuration on such a
/// device uses exactly these bytes.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// The configuration; without one, the built-in quickstart.
    config: Option<PathBuf>,
    /// Override a key of the configuration, as in --set parallel.data=8; may be repeated.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// What the run would compute on: cpu, cuda (the GPU at hand, or an H200 where there is none), auto (the GPU where there
    /// is one), or a file that --describe wrote elsewhere.
    #[arg(long, value_name = "DEVICE|FILE.toml", default_value = "auto")]
    device: String,
    /// Bytes that the device has, in place of its own, as in 80GiB.
    #[arg(long, value_name = "BYTES")]
    capacity: Option<String>,
    /// One JSON object, with the keys of summary.json.
    #[arg(long)]
    json: bool,
    /// Instead: one HTML page, which needs no network and no other file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "schedule", "largest", "fit", "describe"])]
    html: Option<PathBuf>,
    /// Search for the largest micro_batch, layers, width or context that fits.
    #[arg(long, value_name = "KEY", conflicts_with_all = ["json", "fit", "describe"])]
    largest: Option<String>,
    /// Propose grids, schedules, divisions of the optimizer's state and sizes of micro-batches that fit a device with so many
    /// bytes, as in 80GiB, the fastest first by a model of costs; the samples of a step stay as many.
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["capacity", "describe"])]
    fit: Option<String>,
    /// Ranks of what --fit proposes [default: those of the configuration].
    #[arg(long, value_name = "N", requires = "fit", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    ranks: Option<usize>,
    /// Describe the device at hand, for plans elsewhere: on GPUs a small model is run to measure what drivers and libraries
    /// take, so they should have nothing else to do. Into FILE, which must not exist, or printed.
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with_all = ["config", "set", "capacity", "json"])]
    describe: Option<Option<PathBuf>>,
    /// Instead: time the layers on the device at hand, one rank of it, into FILE, which must not exist; with parallel.profile =
    /// FILE, plans and runs divide a pipeline by these times.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "html", "schedule", "largest", "fit", "describe", "capacity"])]
    profile: Option<PathBuf>,
    #[command(flatten)]
    schedule: ScheduleArgs,
}

/// Plans and prints. 0: done; 2: a command line, configuration or data that is wrong, or a run that does not fit.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let done = match &arguments.describe {
        Some(file) => describe(arguments, file.as_deref()),
        None => plan(arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "plimsoll: {error}");
            ExitCode::from(error.exit_status())
        }
    }
}

/// On a terminal or in a pipe. Where nobody reads there is nothing else to do.
fn print(text: &str) {
    let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
}

fn plan(arguments: &Arguments) -> Result<(), TrainError> {
    let config = match &arguments.config {
        Some(path) => RunConfig::load(path, &arguments.set)?,
        None => RunConfig::quickstart(&arguments.set)?,
    };
    let target = PlanTarget::from_argument(&arguments.device)?;
    if let Some(path) = &arguments.profile {
        return profile(&config, path, &target);
    }
    let given = [("--capacity", &arguments.capacity), ("--fit", &arguments.fit)];
    let capacity =
        given.into_iter().find_map(|(name, text)| Some(bytes(name, text.as_ref()?))).transpose()?;
    let options = PlanOptions { target, capacity };
    if arguments.schedule.schedule {
        print(&plan_schedule::text(&arguments.schedule, config, &options)?);
        return Ok(());
    }
    if let Some(path) = &arguments.html {
        let name = arguments.config.as_ref().and_then(|path| path.file_stem());
        let title = name.map_or("quickstart".into(), |name| name.to_string_lossy());
        write_page(path, &plan_page(config, &options, &title)?.to_html())?;
        print(&path.display().to_string());
        return Ok(());
    }
    // Who waits sees how far it is; what comes of it goes elsewhere.
    let say = |line: &dyn Display| drop(writeln!(std::io::stderr(), "{line}"));
    if let Some(name) = &arguments.largest {
        let searched = Searched::from_name(name)?;
        let mut heard = |tried: &Try| say(&format_args!("{name} {}: {}", tried.value, tried.outcome));
        print(&search_largest(config, &options, searched, &mut heard)?.to_string());
        return Ok(());
    }
    if arguments.fit.is_some() {
        let ranks = arguments.ranks.unwrap_or(config.world_size());
        let mut heard = |found: &Proposal| say(&format_args!("fits: {found}"));
        let proposals = propose(config, &options, ranks, &mut heard)?;
        print(&if arguments.json { proposals.to_json().to_string() } else { proposals.to_string() });
        return Ok(());
    }
    let report = plan_run(config, &options)?;
    print(&if arguments.json { report.to_json()? } else { report.to_string() });
    report.refusal().map_or(Ok(()), Err)
}

fn bytes(argument: &str, text: &str) -> Result<u64, TrainError> {
    let refused = || TrainError::Refused(format!("{argument} {text}: write bytes, as in 80GiB or 141GB"));
    parse_bytes(text).filter(|bytes| *bytes > 0).ok_or_else(refused)
}

fn describe(arguments: &Arguments, file: Option<&Path>) -> Result<(), TrainError> {
    let target = PlanTarget::from_argument(&arguments.device)?;
    let described = || describe_device(&target)?.to_toml();
    let Some(path) = file else {
        print(&described()?);
        return Ok(());
    };
    new_file::fill("--describe", path, described)?;
    print(&format!("{} describes this device: `plimsoll plan CONFIG --device {0}`\n", path.display()));
    Ok(())
}

/// Times the layers into a file, and says what that changes.
fn profile(config: &RunConfig, path: &Path, target: &PlanTarget) -> Result<(), TrainError> {
    print(&profile::take(config, path, target)?.to_string());
    for division in timed_divisions(config, path, target)? {
        print(&division.to_string());
    }
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let fastest = match config.parallel.partition {
        PartitionPolicy::Fastest => "",
        PartitionPolicy::Smallest | PartitionPolicy::Layers(_) => " --set parallel.partition=fastest",
    };
    let divide = match config.stages() {
        1 => "one stage has all layers, and there is nothing to divide; to divide more stages by these times",
        _ => "to divide by these times",
    };
    print(&format!("{divide}: --set parallel.profile={}{fastest}", path.display()));
    Ok(())
}
