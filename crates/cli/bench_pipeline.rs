//! `plimsoll bench pipeline`: one model's step under every schedule on the same ranks, each action timed, beside what the
//! simulator makes of these times.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bench::{BenchOptions, PipelineMeasure, bench_pipeline};
use config::{PartitionPolicy, RunConfig};
use parallel::pipeline::ScheduleKind;
use plan::{PlanTarget, timed_divisions};
use telemetry::units::{bytes, grouped};
use worker::{DeviceChoice, TrainError};

use crate::bench_model::{BenchModel, StepArgs};
use crate::profile;

/// The names of all schedules.
const SCHEDULES: [&str; 4] = {
    let [a, b, c, d] = ScheduleKind::ALL;
    [a.name(), b.name(), c.name(), d.name()]
};

/// The arguments of `plimsoll bench pipeline`.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchPipelineArgs {
    /// Which model, as in bench step [default: gpt2-1558m on a GPU, else small]
    #[arg(long)]
    model: Option<String>,
    #[command(flatten)]
    step: StepArgs,
    /// Ranks of the pipeline [default: the GPUs, on the CPU 2]
    #[arg(long, value_name = "N")]
    ranks: Option<usize>,
    /// Micro-batches of a step
    #[arg(long, value_name = "M", default_value_t = 16)]
    micro_batches: usize,
    /// The schedules [default: all]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = SCHEDULES)]
    schedules: Vec<String>,
    /// First time the layers, into FILE, which must not exist, and divide by these times
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Also a run that is not a pipeline: that many micro-batches on one rank
    #[arg(long)]
    alone: bool,
    /// A line of JSON for every schedule instead of tables
    #[arg(long)]
    json: bool,
}

/// Measures and prints. 0: done; 1: a run failed; 2: arguments that are wrong.
pub(crate) fn run(args: &BenchPipelineArgs) -> ExitCode {
    match measure(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "plimsoll: {error}");
            ExitCode::from(error.exit_status())
        }
    }
}

fn measure(args: &BenchPipelineArgs) -> Result<(), TrainError> {
    let (mut cases, options) = prepare(args)?;
    if let (Some(path), Some(config)) = (&args.profile, cases.last()) {
        let target = PlanTarget::AtHand(options.device);
        let path = std::path::absolute(path).map_err(unprinted)?;
        let taken = profile::take(config, &path, &target)?;
        writeln!(std::io::stderr(), "{taken}").map_err(unprinted)?;
        let mut said = Vec::new();
        for config in &cases {
            if said.contains(&config.stages()) {
                continue;
            }
            said.push(config.stages());
            for division in timed_divisions(config, &path, &target)? {
                writeln!(std::io::stderr(), "{division}").map_err(unprinted)?;
            }
        }
        for config in &mut cases {
            (config.parallel.partition, config.parallel.profile) =
                (PartitionPolicy::Fastest, Some(path.clone()));
        }
    }
    let mut measures = Vec::new();
    for config in cases {
        let schedule = config.parallel.schedule.name();
        let found = match bench_pipeline(config, &options) {
            // The others may fit.
            Err(TrainError::Refused(why)) => {
                writeln!(std::io::stderr(), "{schedule}: {why}").map_err(unprinted)?;
                continue;
            }
            found => found?,
        };
        let mut out = std::io::stdout().lock();
        let printed = match args.json {
            true => writeln!(out, "{}", line(&found)),
            // The tables are at the end.
            false => {
                writeln!(std::io::stderr(), "{}: {:.1} tokens/s", name(&found), found.tokens_per_second())
            }
        };
        printed.map_err(unprinted)?;
        measures.push(found);
    }
    if args.json { Ok(()) } else { print(args, &measures).map_err(unprinted) }
}

/// Every run, checked before the first one starts.
fn prepare(args: &BenchPipelineArgs) -> Result<(Vec<RunConfig>, BenchOptions), TrainError> {
    let divides = |key: &&&str| args.profile.is_some() && args.step.sets(key);
    if let Some(key) = ["parallel.partition", "parallel.profile"].iter().find(divides) {
        let text =
            format!("--set {key}: --profile says itself that layers are divided by the times it takes");
        return Err(TrainError::Refused(text));
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
        let mut text = model.configuration(args.step.micro_batch, args.micro_batches, precision);
        text += &format!("[parallel]\npipeline = {pipeline}\nschedule = \"{schedule}\"\n");
        RunConfig::parse(&text, "bench pipeline", Path::new("/"), &args.step.overrides)
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

fn unprinted(source: std::io::Error) -> TrainError {
    TrainError::File { path: "standard output".into(), source }
}

fn name(found: &PipelineMeasure) -> String {
    match (found.ranks.len(), found.chunks) {
        (1, _) => "one rank".to_owned(),
        (_, 1) => found.schedule.clone(),
        (_, chunks) => format!("{} × {chunks}", found.schedule),
    }
}

fn line(found: &PipelineMeasure) -> String {
    let rank = |rank: &bench::PipelineRank| {
        format!(
            "{{\"stages\": \"{}\", \"busy_ms\": {:.3}, \"idle\": {:.5}, \"simulated_idle\": {:.5}, \
             \"peak_allocated_bytes\": {}, \"peak_reserved_bytes\": {}}}",
            rank.stages,
            rank.busy_milliseconds,
            rank.idle,
            rank.simulated_idle,
            rank.peak_allocated,
            rank.peak_reserved
        )
    };
    let ranks: Vec<_> = found.ranks.iter().map(rank).collect();
    format!(
        "{{\"schedule\": \"{}\", \"chunks\": {}, \"device\": \"{}\", \"seconds\": {}, \"tokens_per_second\": {:.1}, \
         \"bubble\": {:.5}, \"simulated_bubble\": {:.5}, \"passes_ms\": {:.3}, \"simulated_ms\": {:.3}, \
         \"transfer_ms\": {:.4}, \"transfer_bytes\": {}, \"loss\": {}, \"ranks\": [{}]}}",
        found.schedule,
        found.chunks,
        found.device,
        found.step_seconds,
        found.tokens_per_second(),
        found.bubble(),
        found.simulated_bubble(),
        found.passes_milliseconds,
        found.simulated_milliseconds,
        found.transfer_milliseconds,
        found.transfer_bytes,
        found.loss,
        ranks.join(", ")
    )
}

fn print(args: &BenchPipelineArgs, measures: &[PipelineMeasure]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let Some(first) = measures.last() else { return Ok(()) };
    writeln!(out, "{} × {} {}", first.ranks.len(), first.device, first.libraries)?;
    writeln!(
        out,
        "{} parameters, {} micro-batches and {} tokens a step; between stages {} a micro-batch, alone {:.3} ms\n",
        grouped(first.parameters as u64),
        args.micro_batches,
        grouped(first.tokens),
        bytes(first.transfer_bytes),
        first.transfer_milliseconds
    )?;
    writeln!(
        out,
        "{:<16} {:>12} {:>10} {:>10} {:>10} {:>8} {:>10} {:>12}",
        "schedule", "tokens/s", "step ms", "passes ms", "simulated", "idle", "simulated", "most memory"
    )?;
    for found in measures {
        let most = found.ranks.iter().map(|rank| rank.peak_allocated).max().unwrap_or(0);
        writeln!(
            out,
            "{:<16} {:>12} {:>10.2} {:>10.2} {:>10.2} {:>6.1} % {:>8.1} % {:>12}",
            name(found),
            grouped(found.tokens_per_second().round() as u64),
            1e3 * found.step_seconds,
            found.passes_milliseconds,
            found.simulated_milliseconds,
            100.0 * found.bubble(),
            100.0 * found.simulated_bubble(),
            bytes(most)
        )?;
    }
    for found in measures {
        writeln!(out, "\n{}: loss {}", name(found), found.loss)?;
        for (rank, of) in found.ranks.iter().enumerate() {
            writeln!(
                out,
                "  rank {rank}: busy {:>9.2} ms, idle {:>5.1} %, simulated {:>5.1} %, peak allocated {:>11}, reserved \
                 {:>11}, stages {}",
                of.busy_milliseconds,
                100.0 * of.idle,
                100.0 * of.simulated_idle,
                bytes(of.peak_allocated),
                bytes(of.peak_reserved),
                of.stages
            )?;
        }
    }
    Ok(())
}
