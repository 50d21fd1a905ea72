//! `plimsoll bench scaling`: one training step on several numbers of ranks, with the same global batch and with the same
//! batch for each rank; and reports of what was measured.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use bench::{BenchOptions, ScalingCase, bench_scaling, bench_scaling_as};
use clap::builder::RangedU64ValueParser;
use run::Startup;
use telemetry::run_files::atomic_write;
use telemetry::scaling::{Scaling, ScalingRun, efficiency_plot, memory_plot, read_runs, scaling_table};
use telemetry::units::grouped;
use worker::TrainError;

use crate::bench_model::{StepArgs, TraceArgs};

mod cases;

/// What only a measurement goes by.
const MEASURES: [&str; 12] = [
    "model",
    "ranks",
    "micro_batches",
    "strong",
    "weak",
    "reduction",
    "alone",
    "rounds",
    "first_round",
    "shard",
    "trace",
    "json",
];

/// The arguments of `plimsoll bench scaling`.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchScalingArgs {
    /// Measure nothing, and report on these files of JSON lines
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = MEASURES)]
    report: Vec<PathBuf>,
    /// Which model, as in bench step [default: gpt2-124m on a GPU, else small]
    #[arg(long)]
    model: Option<String>,
    #[command(flatten)]
    step: StepArgs,
    #[command(flatten)]
    trace: TraceArgs,
    /// The numbers of ranks, such as 1,2,4 [default: powers of two up to the GPUs, on the CPU 1,2]; under mpirun all numbers
    /// of the series, of which the job measures its own
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    ranks: Vec<usize>,
    /// Micro-batches of a step on the most ranks [default: one for each]: strong scaling has as many on every number of
    /// ranks, weak scaling as many for each rank as there
    #[arg(long, value_name = "M")]
    micro_batches: Option<usize>,
    /// Nothing but strong scaling: the same global batch
    #[arg(long, conflicts_with = "weak")]
    strong: bool,
    /// Nothing but weak scaling: the same batch for each rank
    #[arg(long)]
    weak: bool,
    /// Who adds gradients over ranks: tree, nccl or both [default: tree, on GPUs tree,nccl]
    #[arg(long, value_name = "KIND,…", value_delimiter = ',', value_parser = ["tree", "nccl"])]
    reduction: Vec<String>,
    /// Also what the devices of the most ranks do alone, all at the same time: a world of one rank on each, with as much to do
    /// as a rank has in the other runs. Under mpirun nothing else
    #[arg(long)]
    alone: bool,
    /// Measure everything so often, in turn; the median round of a run counts
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    rounds: usize,
    /// The number of the first round, as lines have it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    first_round: usize,
    /// Divide the optimizer's state among the ranks
    #[arg(long)]
    shard: bool,
    /// Nothing but a line of JSON for every run on standard output
    #[arg(long)]
    json: bool,
    /// Where efficiency.svg and memory.svg go
    #[arg(long, value_name = "DIR", conflicts_with = "json")]
    plots: Option<PathBuf>,
}

/// Measures or reports. 0: done; 1: a run failed; 2: arguments that are wrong.
pub(crate) fn run(args: &BenchScalingArgs) -> ExitCode {
    let done = if args.report.is_empty() { measure(args) } else { report(args) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !matches!(error, TrainError::Said { .. }) {
                let _ = writeln!(std::io::stderr(), "plimsoll: {error}");
            }
            ExitCode::from(error.exit_status())
        }
    }
}

fn report(args: &BenchScalingArgs) -> Result<(), TrainError> {
    let refused = |error: telemetry::TelemetryError| TrainError::Refused(error.to_string());
    let read: Result<Vec<_>, _> = args.report.iter().map(|path| read_runs(path).map_err(refused)).collect();
    conclude(args, &read?.concat())
}

fn measure(args: &BenchScalingArgs) -> Result<(), TrainError> {
    let mut startup = Startup::begin()?;
    let prepared = cases::prepare(args, startup.is_in_job());
    let (cases, options) = startup.agree(prepared)?;
    if startup.is_in_job() {
        let Some(run) = bench_scaling_as(startup, cases, &options)? else { return Ok(()) };
        let run = ScalingRun { round: args.first_round, ..run };
        return if args.json { print_line(&run) } else { conclude(args, &[run]) };
    }
    let mut runs: Vec<ScalingRun> = Vec::new();
    for round in 0..args.rounds {
        runs.extend(round_of(args, &cases, &options, args.first_round + round)?);
    }
    if args.json { Ok(()) } else { conclude(args, &runs) }
}

/// Measures every case once.
fn round_of(
    args: &BenchScalingArgs,
    cases: &[ScalingCase],
    options: &BenchOptions,
    round: usize,
) -> Result<Vec<ScalingRun>, TrainError> {
    let mut runs: Vec<ScalingRun> = Vec::new();
    for case in cases {
        // On the most ranks strong and weak scaling are the same run.
        let same = |other: &ScalingCase| {
            (other.scaling == Scaling::Alone) == (case.scaling == Scaling::Alone)
                && other.config.to_toml() == case.config.to_toml()
        };
        let known = cases.iter().zip(&runs).find(|(other, _)| same(other));
        let run = match known {
            Some((_, run)) => ScalingRun { scaling: case.scaling, ..run.clone() },
            None => ScalingRun { round, ..bench_scaling(case.clone(), options)? },
        };
        if args.json {
            print_line(&run)?;
        } else {
            let of = if args.rounds == 1 { String::new() } else { format!("round {round}: ") };
            // Progress is for whoever looks.
            let _ = writeln!(std::io::stderr(), "{of}{}", progress(&run));
        }
        runs.push(run);
    }
    Ok(runs)
}

fn progress(run: &ScalingRun) -> String {
    let ends = if run.ranks == 1 { "" } else { "s" };
    let what = match run.scaling {
        Scaling::Alone => format!("alone, {} micro-batches", run.micro_batches),
        scaling => format!("{}, {}", scaling.name(), run.reduction),
    };
    let tokens = grouped(run.tokens_per_second().round() as u64);
    format!("{what}, {} rank{ends}: {tokens} tokens/s", run.ranks)
}

fn unprinted(source: std::io::Error) -> TrainError {
    TrainError::File { path: "standard output".into(), source }
}

fn print_line(run: &ScalingRun) -> Result<(), TrainError> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", run.to_line()?).and_then(|()| out.flush()).map_err(unprinted)
}

/// Prints the table and writes the plots.
fn conclude(args: &BenchScalingArgs, runs: &[ScalingRun]) -> Result<(), TrainError> {
    let mut out = std::io::stdout().lock();
    write!(out, "{}", scaling_table(runs)).map_err(unprinted)?;
    let Some(directory) = &args.plots else { return Ok(()) };
    std::fs::create_dir_all(directory)
        .map_err(|source| TrainError::File { path: directory.clone(), source })?;
    for (name, plot) in [("efficiency.svg", efficiency_plot(runs)), ("memory.svg", memory_plot(runs))] {
        let path = directory.join(name);
        atomic_write(&path, plot.as_bytes())?;
        writeln!(out, "{}", path.display()).map_err(unprinted)?;
    }
    Ok(())
}
