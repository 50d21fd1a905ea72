//! `plimsoll profile`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::RangedU64ValueParser;

use crate::error::CliError;
use bench::{GPU_WARM_UP, OperatorOptions, profile_operators};
use config::RunConfig;
use run::configuration_of;
use telemetry::operators::{By, FILE, OperatorProfile, Sort};
use telemetry::units::{grouped, percent};
use worker::DeviceChoice;

use crate::arguments::seconds;
use crate::output::{print, print_json};
use crate::outputs::{Force, Kind};

/// Print the operators of a training step by time, bytes and FLOPs
///
/// Trains a few steps of the configuration on all its ranks, as threads, and measures every operator and its
/// backward: device time between events on the compute stream, host time, bytes allocated and kept, FLOPs.
/// Values are summed over ranks; a row in parentheses is a phase outside all operators. For a run directory,
/// the profile is also saved in it, and `report` shows it.
#[derive(clap::Args, Debug)]
pub(crate) struct ProfileArgs {
    /// Configuration file or run directory; without one, the built-in quickstart.
    config: Option<PathBuf>,
    /// Override a key of the configuration, as in --set parallel.data=2; may be repeated.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// Device: auto, cpu or cuda.
    #[arg(long, default_value = "auto")]
    device: String,
    /// Number of measured steps.
    #[arg(long, default_value_t = 3, value_parser = RangedU64ValueParser::<u64>::new().range(1..=1000))]
    steps: u64,
    /// Minimum seconds of warm-up steps [default: 5 on a GPU, whose clocks drop in the first seconds of work;
    /// 0 otherwise].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    warm_up_seconds: Option<Duration>,
    /// Rows: operators or modules, each divided by pass.
    #[arg(long, value_enum, default_value_t = Rows::Operator)]
    by: Rows,
    /// Sort by time on the device, memory kept, or bytes allocated.
    #[arg(long, value_enum, default_value_t = Order::Time)]
    sort: Order,
    /// Number of rows; further ones are combined.
    #[arg(long, default_value_t = 10)]
    limit: usize,
    /// Write the measured steps of all ranks as a Chrome trace for ui.perfetto.dev: phases, operators with
    /// modules and bytes, kernels by stream, communication and memory.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print one line of JSON with all rows instead.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    force: Force,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Rows {
    Operator,
    Module,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Order {
    Memory,
    Time,
    Bytes,
}

/// Runs the command: measures and prints.
///
/// # Errors
/// The arguments or configuration are invalid, or a run fails.
pub(crate) fn run(args: &ProfileArgs) -> Result<(), CliError> {
    let device = DeviceChoice::from_name(&args.device)?;
    let run_dir = args.config.as_deref().filter(|path| path.is_dir());
    let config = match (&args.config, run_dir) {
        (_, Some(run_dir)) => configuration_of(run_dir, &args.set)?,
        (Some(path), None) => RunConfig::load(path, &args.set)?,
        (None, None) => RunConfig::quickstart(&args.set)?,
    };
    if let Some(path) = &args.trace {
        // Checked before anything is measured; the trace itself replaces only files of this program.
        args.force.output("--trace", path, Kind::Trace)?;
    }
    let on_gpu = device != DeviceChoice::Cpu && device::cuda::availability().is_ok();
    let warm_up = if on_gpu { GPU_WARM_UP } else { Duration::ZERO };
    let warm_up = args.warm_up_seconds.unwrap_or(warm_up);
    let options = OperatorOptions { device, steps: args.steps, warm_up, trace: args.trace.clone() };
    let profile = profile_operators(config, &options)?;
    if let Some(run_dir) = run_dir.filter(|_| args.set.is_empty()) {
        profile.write(&run_dir.join(FILE))?;
    }
    match args.json {
        true => print_json(&profile),
        false => print(&text(args, &profile, args.trace.as_deref())),
    }
}

fn text(args: &ProfileArgs, profile: &OperatorProfile, trace: Option<&Path>) -> String {
    let by = match args.by {
        Rows::Operator => By::Operator,
        Rows::Module => By::Module,
    };
    let sort = match args.sort {
        Order::Memory => Sort::Memory,
        Order::Time => Sort::Time,
        Order::Bytes => Sort::Bytes,
    };
    let OperatorProfile { device, ranks, steps, step_milliseconds, flops_per_second, .. } = profile;
    let total = profile.total();
    let measured = total.device_milliseconds / *ranks as f64;
    let reached = 1e3 * total.flops / total.device_milliseconds / flops_per_second;
    let added = if *ranks == 1 { String::new() } else { format!(", {ranks} ranks added up") };
    let written = trace.map_or_else(String::new, |path| format!("\ntrace: {}", path.display()));
    format!(
        "{device}: mean of {} steps{added}\nthe step takes {step_milliseconds:.3} ms, and {measured:.3} ms \
         with every operator measured; the best rate, of a large matmul or a row below, is {} GFLOP/s, and \
         the step reaches {} of that\n\n{}{}{written}",
        grouped(*steps),
        grouped((flops_per_second / 1e9).round() as u64),
        percent(reached),
        profile.communication(),
        profile.table(by, sort, args.limit)
    )
}
