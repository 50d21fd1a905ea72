//! The command line of a neural-network trainer, also for programs with their own model families.
//!
//! A program that registers its families gets all features of the built-in ones: ranks, grids, exact memory
//! plans, checkpoints, resuming, pages and all commands.
//!
//! ```no_run
//! use plimsoll::autograd::{Tape, Var, ops};
//! use plimsoll::keys::{self, RawValues, Row, section};
//! use plimsoll::nn::{self, Conditions, Examples, Family, Init, Input, Model, ModelSpec};
//! use plimsoll::nn::{Parameters, Recompute, Stage};
//! use plimsoll::nn::layers::{Activation, Linear, Stack};
//! use plimsoll::tensor::Tensor;
//!
//! section! {
//!     /// The sizes of a stack of equal linear layers.
//!     pub struct Sizes = "model" {
//!         /// Linear layers.
//!         layers: usize = Row::count(1, 100).default("3");
//!         /// Values between them.
//!         side: usize = Row::count(1, 1000).default("16");
//!     }
//! }
//!
//! impl ModelSpec for Sizes {
//!     fn layers(&self) -> usize { self.layers }
//!     fn layers_key(&self) -> &'static str { Self::layers }
//!     fn examples(&self) -> Examples { Examples::Numbers { inputs: self.side, outputs: self.side } }
//!     fn check(&self, _: &RawValues, _: &Conditions) -> keys::Result<()> { Ok(()) }
//!     fn summary(&self) -> String { format!("{} layers of {}", self.layers, self.side) }
//!     fn build(&self, mut parameters: Parameters, stage: &Stage, recompute: Recompute)
//!         -> nn::Result<Box<dyn Model>> {
//!         let (side, init) = (self.side, Init::uniform_fan_in(self.side));
//!         // Only the layers of this stage, under the numbers that they have in the whole model.
//!         let layer = |index: usize| {
//!             Linear::new(&mut parameters, &format!("{index}"), side, side, init, Activation::Relu)
//!         };
//!         let layers = stage.layers.clone().map(layer).collect::<nn::Result<Vec<_>>>()?;
//!         let layers = Stack::new(layers).recomputing(recompute);
//!         Ok(Box::new(MyModel { parameters, layers }))
//!     }
//! }
//!
//! struct MyModel { parameters: Parameters, layers: Stack<Linear> }
//!
//! impl Model for MyModel {
//!     fn parameters(&self) -> &Parameters { &self.parameters }
//!     fn forward(&self, tape: &Tape, input: Input) -> nn::Result<Var> {
//!         let x = match input {
//!             Input::Batch(batch) => tape.constant(batch),
//!             Input::Hidden(hidden) => hidden,
//!         };
//!         self.layers.forward(tape, x)
//!     }
//!     fn loss(&self, tape: &Tape, prediction: Var, targets: &Tensor, scale: f32) -> nn::Result<Var> {
//!         Ok(ops::mse(tape, prediction, targets, scale)?)
//!     }
//! }
//!
//! // Chosen by `model.kind = "mine"`.
//! fn main() { plimsoll::main([Family::new::<Sizes>("mine")]) }
//! ```
//!
//! [`example`] is a program with a family of language models.

mod arguments;
mod bench_allocator;
mod bench_attention;
mod bench_collective;
mod bench_experts;
mod bench_matmul;
mod bench_model;
mod bench_operands;
mod bench_pipeline;
mod bench_predict;
mod bench_recurrence;
mod bench_sample;
mod bench_scaling;
mod bench_step;
mod compare;
mod error;
mod eval;
mod export;
mod launch;
mod layer_profile;
mod memory;
mod model;
mod new;
mod output;
mod outputs;
mod plan;
mod plan_schedule;
mod process;
mod profile;
mod replay;
mod report;
mod runs;
mod sample;
mod step;
mod tokenize;
mod train;
mod variables;
mod watch;

/// A family of language models, with a test of its grids: `crates/cli/examples/family.rs`.
///
#[doc = concat!("```no_run\n", include_str!("examples/family.rs"), "```")]
#[cfg(doc)]
pub mod example {}

pub use {autograd, device, keys, nn, tensor};

pub use variables::ENVIRONMENT;

use std::ffi::OsString;

use clap::{Command as Definition, CommandFactory, FromArgMatches, Parser, Subcommand};
use nn::{Families, Family};

use crate::error::CliError;

/// Train neural networks on one or many devices, with every byte known before the run starts
///
/// Without a command, trains the built-in quickstart: a small GPT on Plimsoll's own source text, on two
/// ranks.
#[derive(Parser, Debug)]
#[command(version, propagate_version = true, max_term_width = 100)]
#[command(
    after_help = "Exit status: 0 done; 1 the run failed; 2 the command line, configuration or data is \
    wrong; 130, 143 or 129 stopped by Ctrl-C, SIGTERM or SIGHUP, with a checkpoint.\nEnvironment: PLIMSOLL_LOG sets the log level (error, warn, info, debug, trace); \
    RAYON_NUM_THREADS sets the number of CPU threads, at most that of processors; it never changes a \
    result."
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand, Debug)]
enum Command {
    New(new::NewArgs),
    Train(train::TrainArgs),
    Launch(launch::LaunchArgs),
    Plan(plan::PlanArgs),
    Sample(sample::SampleArgs),
    Eval(eval::EvalArgs),
    Export(export::ExportArgs),
    Report(report::ReportArgs),
    Compare(compare::CompareArgs),
    Runs(runs::RunsArgs),
    Watch(watch::WatchArgs),
    Memory(memory::MemoryArgs),
    Replay(replay::ReplayArgs),
    Profile(profile::ProfileArgs),
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
    Attention(bench_attention::BenchAttentionArgs),
    Collective(bench_collective::BenchCollectiveArgs),
    Experts(bench_experts::BenchExpertsArgs),
    Matmul(bench_matmul::BenchMatmulArgs),
    Pipeline(bench_pipeline::BenchPipelineArgs),
    Predict(bench_predict::BenchPredictArgs),
    Recurrence(bench_recurrence::BenchRecurrenceArgs),
    Sample(bench_sample::BenchSampleArgs),
    Scaling(bench_scaling::BenchScalingArgs),
    Step(bench_step::BenchStepArgs),
}

/// Parses the command line.
fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Arguments, clap::Error> {
    let matches = with_negative_numbers(Arguments::command()).try_get_matches_from(arguments)?;
    Arguments::from_arg_matches(&matches)
}

/// Parses the words of a `plimsoll train` command; the first word is `train`.
///
/// # Errors
/// The arguments are invalid, or it is another command.
fn train_arguments(words: &[OsString]) -> Result<train::TrainArgs, CliError> {
    let refused = |why: String| CliError::Refused(why.trim_start_matches("error: ").trim_end().to_owned());
    let words = std::iter::once(OsString::from("plimsoll")).chain(words.iter().cloned());
    match parse(words).map_err(|error| refused(error.to_string()))?.command {
        Some(Command::Train(args)) => Ok(args),
        _ => Err(refused("only train starts again".to_owned())),
    }
}

/// Makes a command and its subcommands accept negative numbers as values, so that they are rejected as values
/// and not as unknown options.
fn with_negative_numbers(command: Definition) -> Definition {
    let command = command.mut_args(|argument| match argument.get_action().takes_values() {
        true => argument.allow_negative_numbers(true),
        false => argument,
    });
    command.mut_subcommands(with_negative_numbers)
}

impl Command {
    /// Returns whether the command's processes join a launcher's job.
    fn joins_jobs(&self) -> bool {
        match self {
            Command::Train(_) | Command::Eval(_) | Command::Sample(_) => true,
            Command::Bench(Bench::Collective(_) | Bench::Scaling(_)) => true,
            Command::Plan(args) => args.describes(),
            _ => false,
        }
    }
}

/// Runs the process's command with the built-in families and those in `own`, then exits with the command's
/// status. Must be called first and only once.
pub fn main(own: impl IntoIterator<Item = Family>) -> ! {
    if let Some(status) = system::confined::serve(&[data::CHAT_TASK]) {
        system::exit::exit(status.into());
    }
    let registered = Families::register(std::iter::once(vision::RESNET).chain(own));
    let status = match process::check_stack().and_then(|()| process::check_addresses(0)).and(registered) {
        Ok(()) => run(),
        Err(refused) => output::exit_code(Err(CliError::Refused(refused))),
    };
    system::exit::exit(status.into())
}

/// Runs the process's command. Not inlined, so that [`main`] checks the stack before this frame exists.
#[inline(never)]
fn run() -> u8 {
    let arguments = std::env::args_os();
    let parsed = match parse(arguments) {
        Ok(Arguments { command: None }) => parse(["plimsoll".into(), "train".into()]),
        parsed => parsed,
    };
    let command = match parsed {
        Ok(Arguments { command: Some(command) }) => command,
        Ok(Arguments { command: None }) => return 2,
        Err(answer) => return output::answer(&answer),
    };
    output::exit_code(process::prepare(command.joins_jobs()).and_then(|()| match command {
        Command::New(args) => new::run(&args),
        Command::Train(args) => train::run(&args),
        Command::Launch(args) => launch::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Sample(args) => sample::run(&args),
        Command::Eval(args) => eval::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Tokenize(args) => tokenize::run(&args),
        Command::Tokenizer(command) => tokenize::run_tokenizer(&command),
        Command::Report(args) => report::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Runs(args) => runs::run(&args),
        Command::Watch(args) => watch::run(&args),
        Command::Memory(args) => memory::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Bench(Bench::Allocator(args)) => bench_allocator::run(&args),
        Command::Bench(Bench::Attention(args)) => bench_attention::run(&args),
        Command::Bench(Bench::Experts(args)) => bench_experts::run(&args),
        Command::Bench(Bench::Collective(args)) => bench_collective::run(&args),
        Command::Bench(Bench::Matmul(args)) => bench_matmul::run(&args),
        Command::Bench(Bench::Pipeline(args)) => bench_pipeline::run(&args),
        Command::Bench(Bench::Predict(args)) => bench_predict::run(&args),
        Command::Bench(Bench::Recurrence(args)) => bench_recurrence::run(&args),
        Command::Bench(Bench::Sample(args)) => bench_sample::run(&args),
        Command::Bench(Bench::Scaling(args)) => bench_scaling::run(&args),
        Command::Bench(Bench::Step(args)) => bench_step::run(&args),
    }))
}
