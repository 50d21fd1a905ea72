//! `plimsoll bench pipeline`.

use std::path::{Path, PathBuf};

use crate::error::CliError;
use bench::{BenchOptions, PipelineMeasure, PipelineRank, bench_pipeline};
use config::{PartitionPolicy, RunConfig};
use parallel::pipeline::ScheduleKind;
use plan::{PlanTarget, timed_partitions};
use serde::Serialize;
use telemetry::table::aligned;
use telemetry::units::{bytes, grouped, percent};
use worker::DeviceChoice;

use crate::arguments::count;
use crate::bench_model::{BenchModel, StepArgs};
use crate::layer_profile;
use crate::output::{note, print, print_json, rounded};
use crate::outputs::Force;

/// Names of all schedules.
const SCHEDULES: [&str; 4] = {
    let [a, b, c, d] = ScheduleKind::ALL;
    [a.name(), b.name(), c.name(), d.name()]
};

/// Measure every pipeline schedule: speed, idle time and peak memory, beside the simulator's predictions
#[derive(Debug, clap::Args)]
pub(crate) struct BenchPipelineArgs {
    /// Model, as in bench step [default: gpt2-1558m on GPUs, small on the CPU]
    #[arg(long)]
    model: Option<String>,
    #[command(flatten)]
    step: StepArgs,
    /// Number of pipeline ranks [default: the number of GPUs; 2 on the CPU]
    #[arg(long, value_name = "N", value_parser = count::<usize>)]
    ranks: Option<usize>,
    /// Number of micro-batches in a step
    #[arg(long, value_name = "M", default_value_t = 16, value_parser = count::<usize>)]
    micro_batches: usize,
    /// Schedules to measure [default: all]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = SCHEDULES)]
    schedules: Vec<String>,
    /// First time the layers, write the times to FILE, and partition the layers by them
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
    /// Also measure the same micro-batches on one rank, without a pipeline
    #[arg(long)]
    alone: bool,
    /// Print a line of JSON for each schedule instead of tables
    #[arg(long)]
    json: bool,
}

/// Runs the command: measures and prints.
///
/// # Errors
/// The arguments are invalid, or a run fails.
pub(crate) fn run(args: &BenchPipelineArgs) -> Result<(), CliError> {
    let (mut cases, options) = prepare(args)?;
    if let Some(path) = &args.profile {
        partition_by_times(&mut cases, path, &options, args.force)?;
    }
    let mut measures = Vec::new();
    for config in cases {
        let schedule = config.parallel.schedule.name();
        let measure = match bench_pipeline(config, &options) {
            // Other schedules may still fit.
            Err(why) if why.is_refused() => {
                note(&format!("{schedule}: {why}"));
                continue;
            }
            result => result?,
        };
        match args.json {
            true => print_json(&ScheduleLine::from_measure(&measure))?,
            false => {
                let speed = grouped(measure.tokens_per_second().round() as u64);
                note(&format!("{}: {speed} {}", name(&measure), measure.unit));
            }
        }
        measures.push(measure);
    }
    if args.json { Ok(()) } else { print(&tables(args, &measures)) }
}

/// Writes the times of the layers to `path`, and makes every case partition its layers by them.
fn partition_by_times(
    cases: &mut [RunConfig],
    path: &Path,
    options: &BenchOptions,
    force: Force,
) -> Result<(), CliError> {
    let Some(config) = cases.last() else { return Ok(()) };
    let target = PlanTarget::AtHand(options.device);
    let path =
        std::path::absolute(path).map_err(|source| CliError::File { path: path.to_owned(), source })?;
    note(&layer_profile::take(config, &path, &target, force)?.to_string());
    let mut printed = Vec::new();
    for config in &*cases {
        if printed.contains(&config.stages()) {
            continue;
        }
        printed.push(config.stages());
        for partition in timed_partitions(config, &path, &target)? {
            note(&partition.to_string());
        }
    }
    for config in cases {
        (config.parallel.partition, config.parallel.profile) = (PartitionPolicy::Fastest, Some(path.clone()));
    }
    Ok(())
}

/// Returns the configurations to measure, all validated before the first run starts.
fn prepare(args: &BenchPipelineArgs) -> Result<(Vec<RunConfig>, BenchOptions), CliError> {
    let divides = |key: &&&str| args.profile.is_some() && args.step.sets(key);
    if let Some(key) = ["parallel.partition", "parallel.profile"].iter().find(divides) {
        let text =
            format!("--set {key}: --profile sets it, since layers are partitioned by the times it takes");
        return Err(CliError::Refused(text));
    }
    let (device, gpus) = args.step.device_of_ranks()?;
    let on_gpus = device == DeviceChoice::Cuda;
    let (model, precision) = if on_gpus { ("gpt2-1558m", "bf16") } else { ("small", "f32") };
    let model = BenchModel::named(args.model.as_deref().unwrap_or(model))?;
    let precision = args.step.precision.as_deref().unwrap_or(precision);
    let ranks = args.ranks.unwrap_or(if on_gpus { gpus.max(1) } else { 2 });
    let all: Vec<String> = SCHEDULES.map(str::to_owned).to_vec();
    let schedules = if args.schedules.is_empty() { &all } else { &args.schedules };
    let configuration = |pipeline: usize, schedule: &str| {
        let mut text = model.configuration(args.step.micro_batch_size, args.micro_batches, precision)?;
        text += &format!("[parallel]\npipeline = {pipeline}\nschedule = \"{schedule}\"\n");
        let parsed = RunConfig::parse(&text, "bench pipeline", Path::new("/"), &args.step.overrides);
        parsed.map_err(CliError::from)
    };
    let mut cases = Vec::new();
    if args.alone {
        cases.push(configuration(1, "1f1b")?);
    }
    for schedule in schedules {
        cases.push(configuration(ranks, schedule)?);
    }
    Ok((cases, args.step.options(device)))
}

/// Returns the name of a measured case in tables.
fn name(measure: &PipelineMeasure) -> String {
    match (measure.ranks.len(), measure.chunks) {
        (1, _) => "one rank".to_owned(),
        (_, 1) => measure.schedule.clone(),
        (_, chunks) => format!("{} × {chunks}", measure.schedule),
    }
}

/// A measured schedule, printed as a line of JSON.
#[derive(Serialize)]
struct ScheduleLine<'a> {
    schedule: &'a str,
    chunks: usize,
    device: &'a str,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted_step_seconds: Option<f64>,
    tokens_per_second: f64,
    bubble: f64,
    simulated_bubble: f64,
    passes_ms: f64,
    simulated_ms: f64,
    transfer_ms: f64,
    transfer_bytes: u64,
    loss: f32,
    ranks: Vec<RankLine<'a>>,
}

/// One rank of a measured schedule.
#[derive(Serialize)]
struct RankLine<'a> {
    stages: &'a str,
    busy_ms: f64,
    idle: f64,
    simulated_idle: f64,
    peak_allocated_bytes: u64,
    peak_reserved_bytes: u64,
}

impl<'a> ScheduleLine<'a> {
    fn from_measure(measure: &'a PipelineMeasure) -> Self {
        ScheduleLine {
            schedule: &measure.schedule,
            chunks: measure.chunks,
            device: &measure.device,
            seconds: measure.step_seconds,
            predicted_step_seconds: measure.predicted_seconds,
            tokens_per_second: rounded(measure.tokens_per_second(), 1),
            bubble: rounded(measure.bubble(), 5),
            simulated_bubble: rounded(measure.simulated_bubble(), 5),
            passes_ms: rounded(measure.passes_milliseconds, 3),
            simulated_ms: rounded(measure.simulated_milliseconds, 3),
            transfer_ms: rounded(measure.transfer_milliseconds, 4),
            transfer_bytes: measure.transfer_bytes,
            loss: measure.loss,
            ranks: measure.ranks.iter().map(RankLine::from_rank).collect(),
        }
    }
}

impl<'a> RankLine<'a> {
    fn from_rank(rank: &'a PipelineRank) -> Self {
        RankLine {
            stages: &rank.stages,
            busy_ms: rounded(rank.busy_milliseconds, 3),
            idle: rounded(rank.idle, 5),
            simulated_idle: rounded(rank.simulated_idle, 5),
            peak_allocated_bytes: rank.peak_allocated,
            peak_reserved_bytes: rank.peak_reserved,
        }
    }
}

/// Formats a row for each schedule, followed by a table of each schedule's ranks.
fn tables(args: &BenchPipelineArgs, measures: &[PipelineMeasure]) -> String {
    let Some(first) = measures.last() else { return String::new() };
    let titles =
        ["schedule", first.unit, "step ms", "passes ms", "simulated ms", "idle", "simulated", "peak memory"];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    rows.extend(measures.iter().map(schedule_row));
    let mut text = format!(
        "{} × {} {}\n{} parameters, {} micro-batches and {} {} in a step; each transfer between stages \
         moves {} and takes {:.3} ms alone\n\n{}",
        first.ranks.len(),
        first.device,
        first.libraries,
        grouped(first.parameters as u64),
        args.micro_batches,
        grouped(first.tokens),
        first.unit.trim_end_matches("/s"),
        bytes(first.transfer_bytes),
        first.transfer_milliseconds,
        aligned(&rows, 1, &[1])
    );
    for measure in measures {
        let titles = ["rank", "stages", "busy ms", "idle", "simulated", "peak allocated", "peak reserved"];
        let mut rows = vec![titles.map(str::to_owned).to_vec()];
        rows.extend(measure.ranks.iter().enumerate().map(rank_row));
        text += &format!("\n{}: loss {}\n{}", name(measure), measure.loss, aligned(&rows, 2, &[1]));
    }
    text
}

fn schedule_row(measure: &PipelineMeasure) -> Vec<String> {
    let peak = measure.ranks.iter().map(|rank| rank.peak_allocated).max().unwrap_or(0);
    vec![
        name(measure),
        grouped(measure.tokens_per_second().round() as u64),
        format!("{:.2}", 1e3 * measure.step_seconds),
        format!("{:.2}", measure.passes_milliseconds),
        format!("{:.2}", measure.simulated_milliseconds),
        percent(measure.bubble()),
        percent(measure.simulated_bubble()),
        bytes(peak),
    ]
}

fn rank_row((number, rank): (usize, &PipelineRank)) -> Vec<String> {
    vec![
        number.to_string(),
        rank.stages.clone(),
        format!("{:.2}", rank.busy_milliseconds),
        percent(rank.idle),
        percent(rank.simulated_idle),
        bytes(rank.peak_allocated),
        bytes(rank.peak_reserved),
    ]
}
