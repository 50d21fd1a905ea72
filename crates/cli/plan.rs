//! `plimsoll plan`.

use std::path::{Path, PathBuf};

use crate::arguments::count;
use crate::error::CliError;
use bench::{Extent, check_hosts, describe_device, measure_network, measured_calls, probe, random_calls};
use config::{Parallel, PartitionPolicy, RunConfig};
use plan::{
    ClassRatio, FitOptions, FitProgress, PlanDevice, PlanOptions, PlanTarget, Try, plan_page, plan_precision,
    plan_run, propose, search_largest, timed_partitions,
};
use run::Startup;
use system::pace::Pace;
use telemetry::units::{counted, parse_bytes};

use crate::bench_predict::measured_steps;
use crate::layer_profile;
use crate::output::{note, print};
use crate::outputs::{Force, Kind, Output};
use crate::plan_schedule::{self, ScheduleArgs};

/// Print the memory of every rank of a run, to the byte, without running it
///
/// Runs the real worker of every kind of rank without allocating memory. Prints the bytes that each rank
/// allocates and reserves, their peaks, what is alive at the peak, and whether the run fits. A run of this
/// configuration on such a device uses exactly these bytes. Only names and sizes of data files and a few
/// thousand bytes are read; with train.epochs all data is read, because the number of sequences determines
/// the number of steps. Exit status: 0 if the run fits, 1 if it does not, 2 if it cannot be planned.
#[derive(clap::Args, Debug)]
pub(crate) struct PlanArgs {
    /// Configuration file; without one, the built-in quickstart.
    config: Option<PathBuf>,
    /// Override a key of the configuration, as in --set parallel.data=8; may be repeated.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// Device to plan for: cpu; cuda (this host's GPU, or an H200 if there is none); auto (the GPU if there
    /// is one, else the CPU); a GPU that this host need not have: a100-40gb, a100-80gb, a10g, b200,
    /// h100-80gb, h20, h200, l4, l40s, rtx-3090, rtx-4090, rtx-5090, rtx-pro-6000 or t4; or a file written by
    /// --describe on another host.
    #[arg(long, value_name = "DEVICE|FILE.toml", default_value = "auto")]
    device: String,
    /// Assume this much device memory, as in 80GiB, instead of the device's own.
    #[arg(long, value_name = "BYTES")]
    capacity: Option<String>,
    /// Print the operators of a step instead, with the dtypes of their results and gradients, and whether
    /// they compute in half precision or in f32.
    #[arg(long, conflicts_with_all = ["json", "html", "schedule", "largest", "fit", "describe", "profile"])]
    precision: bool,
    /// Print one JSON object, with the keys of summary.json.
    #[arg(long)]
    json: bool,
    /// Write the plan to FILE as a self-contained HTML page.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "schedule", "largest", "fit", "describe"])]
    html: Option<PathBuf>,
    /// Find the largest value of KEY that fits: micro_batch_size, layers, width or context.
    #[arg(long, value_name = "KEY", conflicts_with_all = ["json", "fit", "describe"])]
    largest: Option<String>,
    /// Propose grids, schedules, optimizer sharding, recomputation and micro-batch sizes that fit the device,
    /// or a device of BYTES, as in 80GiB; the fastest by predicted time first. The global batch stays the
    /// same; parallel.lanes grows to the number of data-parallel ranks.
    #[arg(long, value_name = "BYTES", num_args = 0..=1, conflicts_with_all = ["capacity", "describe"])]
    fit: Option<Option<String>>,
    /// Number of ranks for --fit [default: as configured].
    #[arg(long, value_name = "N", requires = "fit", value_parser = count::<usize>)]
    ranks: Option<usize>,
    /// Write a description of this host's device to FILE, or print it, for plans on other hosts. On a GPU,
    /// runs a small model to measure the memory of drivers and libraries; the GPU should be idle. Under a
    /// launcher with a process for each GPU of several hosts, adds the network between the hosts to FILE,
    /// which must describe one of them.
    #[arg(
        long,
        value_name = "FILE",
        num_args = 0..=1,
        conflicts_with_all = ["capacity", "json"]
    )]
    describe: Option<Option<PathBuf>>,
    /// With --describe, measure for a minute, scale Plimsoll's description of this GPU model to the present
    /// GPU if that differs by more than 5 %, and take the host's rates. With a configuration, also time its
    /// calls in steps of some of its layers, for the best prediction of its steps.
    #[arg(long, requires = "describe")]
    quick: bool,
    /// With --describe, measure nothing, and add the calls of the steps in LINES to FILE. Such lines are
    /// printed by `plimsoll bench predict --json --calls`.
    #[arg(long, value_name = "LINES", requires = "describe", conflicts_with = "quick")]
    add: Vec<PathBuf>,
    /// With --describe, time the matmuls, attention and convolutions of N random configurations, each call
    /// alone, and add them to FILE. A full description has the calls of 500. A GPU takes about a minute for
    /// 500.
    #[arg(
        long,
        value_name = "N",
        requires = "describe",
        conflicts_with_all = ["quick", "add"],
        value_parser = count::<usize>
    )]
    calls: Option<usize>,
    /// Seed of the random configurations of --calls.
    #[arg(long, value_name = "SEED", default_value_t = 1, requires = "calls")]
    seed: u64,
    /// Time the model's layers on one device of this host and write the times to FILE. With parallel.profile
    /// = FILE, plans and runs partition the layers over pipeline stages by these times.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["json", "html", "schedule", "largest", "fit", "describe", "capacity"]
    )]
    profile: Option<PathBuf>,
    #[command(flatten)]
    schedule: ScheduleArgs,
    #[command(flatten)]
    force: Force,
}

impl PlanArgs {
    /// Returns whether the command describes a device, possibly together with other processes.
    pub(crate) fn describes(&self) -> bool {
        self.describe.is_some()
    }
}

/// Runs the command: plans and prints.
///
/// # Errors
/// The arguments, configuration or data are invalid, or the run does not fit.
pub(crate) fn run(args: &PlanArgs) -> Result<(), CliError> {
    let target = PlanTarget::from_argument(&args.device)?;
    if let Some(file) = &args.describe {
        return describe(&target, file.as_deref(), args);
    }
    let (config, is_raised) = match &args.fit {
        Some(_) => with_enough_lanes(args)?,
        None => (configured(args, &args.set)?, false),
    };
    run::check_described_device(&config)?;
    if let Some(path) = &args.profile {
        return profile(&config, path, &target, args.force);
    }
    let capacities = [("--capacity", &args.capacity), ("--fit", args.fit.as_ref().unwrap_or(&None))];
    let capacity =
        capacities.into_iter().find_map(|(name, text)| Some(bytes(name, text.as_ref()?))).transpose()?;
    let options = PlanOptions { target, capacity };
    if args.schedule.schedule {
        return print(&plan_schedule::text(&args.schedule, args.force, config, &options)?);
    }
    if args.precision {
        return print(&plan_precision(config, &options)?.to_string());
    }
    if let Some(path) = &args.html {
        return page(args, config, &options, path);
    }
    if let Some(name) = &args.largest {
        return largest(name, config, &options);
    }
    if args.fit.is_some() {
        return fit(args, config, &options, is_raised);
    }
    let report = plan_run(config, &options)?;
    let refusal = report.refusal();
    match args.json {
        true => {
            print(&report.to_json()?)?;
            refusal.iter().for_each(|refusal| note(&format!("plimsoll: {refusal}")));
        }
        // The text ends with the result.
        false => print(&report.to_string())?,
    }
    verdict(refusal.is_none())
}

/// Sets the exit status of a command that has already printed whether a run fits.
///
/// # Errors
/// The run does not fit.
fn verdict(fits: bool) -> Result<(), CliError> {
    if fits { Ok(()) } else { Err(CliError::Shown { status: 1 }) }
}

fn configured(args: &PlanArgs, sets: &[String]) -> Result<RunConfig, CliError> {
    Ok(match &args.config {
        Some(path) => RunConfig::load(path, sets)?,
        None => RunConfig::quickstart(sets)?,
    })
}

/// Returns the configuration for a search over grids, and whether its lanes were raised. If it has too few
/// lanes for its data-parallel ranks, it gets the smallest number that works, because the search chooses the
/// lanes itself.
///
/// # Errors
/// The configuration is invalid for another reason.
fn with_enough_lanes(args: &PlanArgs) -> Result<(RunConfig, bool), CliError> {
    let refused = match configured(args, &args.set) {
        Ok(config) => return Ok((config, false)),
        Err(error) => error,
    };
    let lanes = (1..=MOST_LANES.ilog2()).map(|power| 1_usize << power);
    let mut raised = lanes.filter_map(|lanes| {
        let sets = [&args.set[..], &[format!("{}={lanes}", Parallel::lanes)]].concat();
        Some((configured(args, &sets).ok()?, true))
    });
    raised.next().ok_or(refused)
}

/// Minimum memory of a device in bytes; a smaller number probably lacks its unit.
const LEAST_BYTES: u64 = 1 << 20;
/// Maximum number of lanes in a configuration.
const MOST_LANES: usize = 1 << 20;

fn bytes(argument: &str, text: &str) -> Result<u64, CliError> {
    let refused = |why: String| CliError::Refused(format!("{argument} {text}: {why}"));
    match parse_bytes(text) {
        Some(bytes) if bytes >= LEAST_BYTES => Ok(bytes),
        Some(bytes) => {
            let number: String = text.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
            let count = counted(bytes, "byte");
            Err(refused(format!("that is {count}: write {number}GiB or {number}GB, with the unit")))
        }
        None if text.ends_with(".toml") => Err(refused(format!(
            "not a size: the configuration comes first, as in `plimsoll plan {text} {argument}`"
        ))),
        None => Err(refused("not a size: write 80GiB or 141GB".to_owned())),
    }
}

fn page(args: &PlanArgs, config: RunConfig, options: &PlanOptions, path: &Path) -> Result<(), CliError> {
    let name = args.config.as_ref().and_then(|path| path.file_stem());
    let title = name.map_or("quickstart".into(), |name| name.to_string_lossy());
    let file = args.force.output("--html", path, Kind::Page)?;
    let page = plan_page(config, options, &title)?;
    file.write(&page.to_html())?;
    print(&path.display().to_string())?;
    verdict(page.notices.iter().all(|notice| notice.good))
}

fn largest(name: &str, config: RunConfig, options: &PlanOptions) -> Result<(), CliError> {
    let mut on_result = |tried: &Try| note(&format!("{name} {}: {}", tried.value, tried.outcome));
    print(&search_largest(config, options, name, &mut on_result)?.to_string())
}

fn fit(args: &PlanArgs, config: RunConfig, options: &PlanOptions, is_raised: bool) -> Result<(), CliError> {
    let ranks = args.ranks.unwrap_or(config.world_size());
    note(&format!("screening the grids, schedules and shards of {}", counted(ranks as u64, "rank")));
    let pace = Pace::of_files();
    let mut on_progress = |progress: FitProgress<'_>| match progress {
        FitProgress::Screened { done, total } if pace.is_due() => {
            note(&format!("screened {done} of {total}"))
        }
        FitProgress::Screened { .. } => {}
        FitProgress::Fits(proposal) => note(&format!("fits: {proposal}")),
    };
    // Raised lanes are not the user's setting.
    let searched = FitOptions { ranks, names_grid: is_raised, most_allocations: u64::MAX };
    let proposals = propose(config, options, searched, &mut on_progress)?;
    print(&if args.json { proposals.to_json().to_string() } else { proposals.to_string() })?;
    verdict(!proposals.list.is_empty())
}

fn describe(target: &PlanTarget, file: Option<&Path>, args: &PlanArgs) -> Result<(), CliError> {
    let has_config = args.config.is_some() || !args.set.is_empty();
    if has_config && !args.quick {
        let text = "--describe: a configuration says which calls are timed with --quick: leave it out, or \
                    add --quick";
        return Err(CliError::Refused(text.to_owned()));
    }
    let config = has_config.then(|| configured(args, &args.set)).transpose()?;
    if !args.add.is_empty() {
        return add_calls(file, &args.add);
    }
    if let Some(count) = args.calls {
        return describe_calls(file, count, args.seed);
    }
    let startup = Startup::begin()?;
    if startup.is_in_job() {
        return describe_network(startup, file);
    }
    let output = file.map(|path| args.force.output("--describe", path, Kind::Measurement)).transpose()?;
    let pace = Pace::of_files();
    let extent = if args.quick { Extent::Quick } else { Extent::Full };
    let (device, ratios) = describe_device(target, extent, &|done, all| {
        if pace.is_due() {
            note(&format!("measured {done} of {all} steps"));
        }
    })?;
    for own in ratios {
        let same = if own.is_noise() { ", too little to scale by" } else { "" };
        let ClassRatio { class, ratio, seconds } = own;
        let percent = 100.0 * (ratio - 1.0);
        let from =
            if seconds > 0.0 { format!(", from {:.1} ms of calls", 1e3 * seconds) } else { String::new() };
        note(&format!("{class}: {percent:+.1} % of the described time{from}{same}"));
    }
    let device = match config {
        Some(config) => {
            // A configuration that cannot be probed loses no measurement.
            device.remember()?;
            probed(&config, device)?
        }
        None => device,
    };
    if let Some(path) = device.remember()? {
        note(&format!("runs on this host are predicted by it from now on: {}", path.display()));
    }
    let description = device.to_toml()?;
    let (Some(path), Some(output)) = (file, output) else { return print(&description) };
    output.write(&description)?;
    print(&format!("{0} describes this device: `plimsoll plan CONFIG --device {0}`", path.display()))
}

/// Times the calls of a configuration on the GPU of this host and adds them to its description.
fn probed(config: &RunConfig, device: PlanDevice) -> Result<PlanDevice, CliError> {
    if !device.is_gpu() {
        let text = "--describe: there is no GPU on which the configuration's calls could be timed: leave the \
                    configuration out";
        return Err(CliError::Refused(text.to_owned()));
    }
    let probe = probe(config, &device)?;
    let count = counted(probe.len() as u64, "call");
    note(&match probe.layers {
        Some(layers) => {
            format!("{count} of the configuration timed in steps of {}", counted(layers as u64, "layer"))
        }
        None => format!("{count} of the configuration timed alone"),
    });
    Ok(probe.added_to(device))
}

/// Adds the calls of random configurations, each timed alone, to the description in `file`.
fn describe_calls(file: Option<&Path>, count: usize, seed: u64) -> Result<(), CliError> {
    let (device, output) = described(file.ok_or_else(|| nameless("--calls"))?)?;
    let pace = Pace::of_files();
    let calls = random_calls(&device, count, seed, &|done| {
        if pace.is_due() {
            note(&format!("calls of {done} of {count} configurations timed"));
        }
    })?;
    let added: usize = calls.iter().map(|calls| calls.samples.len()).sum();
    output.write(&device.with_calls(calls).to_toml()?)?;
    print(&format!("{} of {} added", counted(added as u64, "call"), counted(count as u64, "configuration")))
}

fn nameless(option: &str) -> CliError {
    CliError::Refused(format!("{option}: name the file of the description: --describe FILE"))
}

/// Adds the calls of measured steps to the description in `file`.
fn add_calls(file: Option<&Path>, lines: &[PathBuf]) -> Result<(), CliError> {
    let (device, output) = described(file.ok_or_else(|| nameless("--add"))?)?;
    let steps = lines.iter().map(|path| measured_steps(path)).collect::<Result<Vec<_>, _>>()?.concat();
    let calls = measured_calls(&device, &steps)?;
    let added: usize = calls.iter().map(|calls| calls.samples.len()).sum();
    output.write(&device.with_calls(calls).to_toml()?)?;
    print(&format!("{} of {} added", counted(added as u64, "call"), counted(steps.len() as u64, "step")))
}

/// Adds the network between the hosts of a job to the description in `file`.
fn describe_network(mut startup: Startup, file: Option<&Path>) -> Result<(), CliError> {
    let hosts = startup.hosts();
    startup.agree(check_hosts(&hosts))?;
    // Only rank 0 writes the file.
    let opened = match (startup.rank(), file) {
        (0, Some(path)) => described(path).map(Some),
        (0, None) => Err(CliError::Refused(
            "--describe: name the file of a host's description, to which the network is added: write it \
             first, without a launcher"
                .to_owned(),
        )),
        _ => Ok(None),
    };
    let opened = startup.agree(opened)?;
    let ran = startup.run_job(|world, communicator| {
        let (ordinal, _) = world.local();
        let measured = measure_network(communicator, ordinal, &hosts).map_err(|error| error.to_string())?;
        let Some((device, output)) = opened else { return Ok(()) };
        let device = device.with_network(measured);
        let text = device.to_toml().map_err(|error| error.to_string())?;
        output.write(&text).map_err(|error| error.to_string())?;
        let network = device.network.map_or(0.0, |network| network.bytes / 1e9);
        print(&format!("{network:.1} GB/s between hosts for each GPU")).map_err(|error| error.to_string())
    });
    Ok(ran?)
}

/// Reads the description that will be replaced.
fn described(path: &Path) -> Result<(PlanDevice, Output), CliError> {
    let device = PlanDevice::load(path)?;
    Ok((device, Force::ALWAYS.output("--describe", path, Kind::Measurement)?))
}

/// Writes the times of the layers to `path`, and prints them with the resulting partitions.
fn profile(config: &RunConfig, path: &Path, target: &PlanTarget, force: Force) -> Result<(), CliError> {
    print(&layer_profile::take(config, path, target, force)?.to_string())?;
    for partition in timed_partitions(config, path, target)? {
        print(&partition.to_string())?;
    }
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let fastest = match config.parallel.partition {
        PartitionPolicy::Fastest => "",
        PartitionPolicy::Smallest | PartitionPolicy::Layers(_) => " --set parallel.partition=fastest",
    };
    let purpose = match config.stages() {
        1 => {
            "one stage has all layers, and there is nothing to partition; to partition more stages by these \
             times"
        }
        _ => "to partition by these times",
    };
    print(&format!("{purpose}: --set parallel.profile={}{fastest}", path.display()))
}
