//! The `plimsoll` program: its commands and their exit status.

mod bench_allocator;
mod bench_collective;
mod bench_matmul;
mod bench_model;
mod bench_pipeline;
mod bench_scaling;
mod bench_step;
mod error;
mod eval;
mod export;
mod output;
mod outputs;
mod plan;
mod plan_schedule;
mod process;
mod profile;
mod replay;
mod report;
mod sample;
mod tokenize;
mod train;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Command as Definition, CommandFactory, FromArgMatches, Parser, Subcommand};

/// Train neural networks on one or many devices, with every byte known before the run starts
///
/// Without a command, trains the built-in quickstart: a small GPT on Plimsoll's own source text, on two
/// ranks.
#[derive(Parser, Debug)]
#[command(version, propagate_version = true, max_term_width = 100)]
#[command(
    after_help = "Exit status: 0 done; 1 the run failed; 2 the command line, configuration or data is \
    wrong.\nEnvironment: PLIMSOLL_LOG sets the log level (error, warn, info, debug, trace); \
    RAYON_NUM_THREADS sets the number of CPU threads, at most that of processors; it never changes a \
    result."
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand, Debug)]
enum Command {
    Train(train::TrainArgs),
    Plan(plan::PlanArgs),
    Sample(sample::SampleArgs),
    Eval(eval::EvalArgs),
    Export(export::ExportArgs),
    Report(report::ReportArgs),
    Replay(replay::ReplayArgs),
    Tokenize(tokenize::TokenizeArgs),
    #[command(subcommand)]
    Tokenizer(tokenize::TokenizerCommand),
    /// Measure a part of Plimsoll
    #[command(subcommand)]
    Bench(Bench),
}

#[derive(Subcommand, Debug)]
enum Bench {
    Allocator(bench_allocator::BenchAllocatorArgs),
    Collective(bench_collective::BenchCollectiveArgs),
    Matmul(bench_matmul::BenchMatmulArgs),
    Pipeline(bench_pipeline::BenchPipelineArgs),
    Scaling(bench_scaling::BenchScalingArgs),
    Step(bench_step::BenchStepArgs),
}

/// Parses the command line.
fn parse(given: impl IntoIterator<Item = OsString>) -> Result<Arguments, clap::Error> {
    let found = with_negative_numbers(Arguments::command()).try_get_matches_from(given)?;
    Arguments::from_arg_matches(&found)
}

/// The command and those below it, with negative numbers as values, which are refused for what they are.
fn with_negative_numbers(command: Definition) -> Definition {
    let command = command.mut_args(|argument| match argument.get_action().takes_values() {
        true => argument.allow_negative_numbers(true),
        false => argument,
    });
    command.mut_subcommands(with_negative_numbers)
}

impl Command {
    /// Returns whether the command's processes join the job that a launcher started.
    fn joins_jobs(&self) -> bool {
        matches!(
            self,
            Command::Train(_) | Command::Eval(_) | Command::Bench(Bench::Collective(_) | Bench::Scaling(_))
        )
    }
}

fn main() -> ExitCode {
    let given = std::env::args_os();
    let parsed = match parse(given) {
        Ok(Arguments { command: None }) => parse(["plimsoll".into(), "train".into()]),
        parsed => parsed,
    };
    let command = match parsed {
        Ok(Arguments { command: Some(command) }) => command,
        Ok(Arguments { command: None }) => return ExitCode::from(2),
        Err(answer) => return output::answer(&answer),
    };
    output::exit_code(process::prepare(command.joins_jobs()).and_then(|()| match command {
        Command::Train(args) => train::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Sample(args) => sample::run(&args),
        Command::Eval(args) => eval::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Tokenize(args) => tokenize::run(&args),
        Command::Tokenizer(command) => tokenize::run_tokenizer(&command),
        Command::Report(args) => report::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Bench(Bench::Allocator(args)) => bench_allocator::run(&args),
        Command::Bench(Bench::Collective(args)) => bench_collective::run(&args),
        Command::Bench(Bench::Matmul(args)) => bench_matmul::run(&args),
        Command::Bench(Bench::Pipeline(args)) => bench_pipeline::run(&args),
        Command::Bench(Bench::Scaling(args)) => bench_scaling::run(&args),
        Command::Bench(Bench::Step(args)) => bench_step::run(&args),
    }))
}
