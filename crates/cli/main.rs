//! `plimsoll`: the command line.

mod bench_allocator;
mod bench_collective;
mod bench_matmul;
mod bench_model;
mod bench_pipeline;
mod bench_scaling;
mod bench_step;
mod new_file;
mod plan;
mod plan_schedule;
mod profile;
mod replay;
mod report;
mod sample;
mod train;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Trains neural networks on one to many ranks, and knows every byte before it starts.
///
/// Without a command it trains the built-in quickstart: a small GPT on Plimsoll's own source text, on two ranks.
#[derive(Parser, Debug)]
#[command(version, propagate_version = true, max_term_width = 100)]
#[command(
    after_help = "Exit status: 0 done; 1 the run failed; 2 the command line, configuration or data is wrong.\n\
    Environment: PLIMSOLL_LOG sets what is logged (error, warn, info, debug, trace); RAYON_NUM_THREADS the CPU \
    threads, which never change a result."
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand, Debug)]
enum Command {
    Train(train::Arguments),
    Plan(plan::Arguments),
    Sample(sample::Arguments),
    Report(report::Arguments),
    /// Drive the caching allocator with recordings of another one and compare every counter, address and event
    Replay(replay::ReplayArgs),
    /// Measure a part of Plimsoll
    #[command(subcommand)]
    Bench(Bench),
}

#[derive(Subcommand, Debug)]
enum Bench {
    /// Nanoseconds per allocation and per free of the caching allocator
    Allocator(bench_allocator::BenchAllocatorArgs),
    /// Time and bandwidth of every collective by message size, between threads or, under mpirun, processes
    Collective(bench_collective::BenchCollectiveArgs),
    /// Every matmul of a training step with each algorithm that the library has for it, and the table of the best
    Matmul(bench_matmul::BenchMatmulArgs),
    /// Speed, idle time and peak memory of every pipeline schedule, beside what the simulator says
    Pipeline(bench_pipeline::BenchPipelineArgs),
    /// Speed, exposed communication and peak memory of a training step on 1, 2, 4, … ranks, as threads or, under mpirun,
    /// processes
    Scaling(bench_scaling::BenchScalingArgs),
    /// Time of a training step, and on a GPU where in it the time goes
    Step(bench_step::BenchStepArgs),
}

fn main() -> ExitCode {
    let given = Arguments::parse().command;
    let Some(command) = given.or_else(|| Arguments::parse_from(["plimsoll", "train"]).command) else {
        return ExitCode::from(2);
    };
    match command {
        Command::Train(arguments) => train::run(&arguments),
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Sample(arguments) => sample::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Bench(Bench::Allocator(arguments)) => bench_allocator::run(&arguments),
        Command::Bench(Bench::Collective(arguments)) => bench_collective::run(&arguments),
        Command::Bench(Bench::Matmul(arguments)) => bench_matmul::run(&arguments),
        Command::Bench(Bench::Pipeline(arguments)) => bench_pipeline::run(&arguments),
        Command::Bench(Bench::Scaling(arguments)) => bench_scaling::run(&arguments),
        Command::Bench(Bench::Step(arguments)) => bench_step::run(&arguments),
    }
}
