//! `plimsoll bench scaling`.

mod arguments;
mod cases;

use crate::error::CliError;
use bench::{BenchOptions, ScalingCase, bench_scaling, bench_scaling_as};
use run::Startup;
use telemetry::scaling::{Scaling, ScalingRun, efficiency_plot, memory_plot, read_runs, scaling_table};
use telemetry::units::grouped;

pub(crate) use arguments::BenchScalingArgs;

use crate::output::{note, plural, print};
use crate::outputs::Kind;

/// Runs the command: measures, or reports on files of measurements.
///
/// # Errors
/// The arguments are invalid, a file has no runs, or a run fails.
pub(crate) fn run(args: &BenchScalingArgs) -> Result<(), CliError> {
    if args.report.is_empty() { measure(args) } else { report(args) }
}

fn report(args: &BenchScalingArgs) -> Result<(), CliError> {
    let refused = |error: telemetry::TelemetryError| CliError::Refused(error.to_string());
    let read: Result<Vec<_>, _> = args.report.iter().map(|path| read_runs(path).map_err(refused)).collect();
    conclude(args, &read?.concat())
}

fn measure(args: &BenchScalingArgs) -> Result<(), CliError> {
    let mut startup = Startup::begin()?;
    let prepared = cases::prepare(args, startup.is_in_job());
    let (cases, options) = startup.agree(prepared)?;
    if startup.is_in_job() {
        let Some(run) = bench_scaling_as(startup, cases, &options)? else { return Ok(()) };
        let run = ScalingRun { round: args.first_round, ..run };
        return if args.json { print(&run.to_line()?) } else { conclude(args, &[run]) };
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
) -> Result<Vec<ScalingRun>, CliError> {
    let mut runs: Vec<ScalingRun> = Vec::new();
    for case in cases {
        // With the largest number of ranks, strong and weak scaling are the same run.
        let same = |other: &ScalingCase| {
            (other.scaling == Scaling::Alone) == (case.scaling == Scaling::Alone)
                && other.config.to_toml() == case.config.to_toml()
        };
        let run = match cases.iter().zip(&runs).find(|(other, _)| same(other)) {
            Some((_, run)) => ScalingRun { scaling: case.scaling, ..run.clone() },
            None => ScalingRun { round, ..bench_scaling(case.clone(), options)? },
        };
        if args.json {
            print(&run.to_line()?)?;
        } else {
            let prefix = if args.rounds == 1 { String::new() } else { format!("round {round}: ") };
            note(&format!("{prefix}{}", progress(&run)));
        }
        runs.push(run);
    }
    Ok(runs)
}

fn progress(run: &ScalingRun) -> String {
    let what = match run.scaling {
        Scaling::Alone => format!("alone, {} micro-batches", run.micro_batches),
        scaling => format!("{}, {}", scaling.name(), run.reduction),
    };
    let speed = grouped(run.tokens_per_second().round() as u64);
    format!("{what}, {} rank{}: {speed} {}", run.ranks, plural(run.ranks), run.unit)
}

/// Prints the table and writes the plots.
fn conclude(args: &BenchScalingArgs, runs: &[ScalingRun]) -> Result<(), CliError> {
    print(&scaling_table(runs))?;
    let Some(directory) = &args.plots else { return Ok(()) };
    std::fs::create_dir_all(directory)
        .map_err(|source| CliError::File { path: directory.clone(), source })?;
    for (name, plot) in [("efficiency.svg", efficiency_plot(runs)), ("memory.svg", memory_plot(runs))] {
        let path = directory.join(name);
        args.force.output("--plots", &path, Kind::Picture)?.write(&plot)?;
        print(&path.display().to_string())?;
    }
    Ok(())
}
