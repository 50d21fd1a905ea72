//! `plimsoll eval`.

use std::path::PathBuf;

use crate::error::CliError;
use run::{EvaluateOptions, Startup};
use telemetry::log::Log;
use worker::DeviceChoice;

use crate::output::{print, print_json};

/// Compute the loss of a model on text or token shards
///
/// Cuts the data into sequences that follow each other without overlap, and prints the number of predicted
/// tokens, the mean loss of a token in nats, and the perplexity.
#[derive(clap::Args, Debug)]
pub(crate) struct EvalArgs {
    /// A run, a checkpoint, or a folder of Hugging Face.
    model: PathBuf,
    /// Text files or token shards (.bin), or globs of them [default: what the run held out].
    #[arg(long, value_name = "FILE", num_args = 1..)]
    data: Vec<String>,
    /// Tokens in a sequence [default: as the model was trained with].
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// The step of the run's checkpoint [default: the newest].
    #[arg(long, value_name = "N")]
    step: Option<u64>,
    /// Override a key of the model's configuration, as in --set parallel.pipeline=2; may be repeated.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// Number of ranks, as threads of this process; must equal parallel.data × parallel.pipeline, which is
    /// the default.
    #[arg(long, value_name = "N")]
    ranks: Option<usize>,
    /// Device to compute on: cpu, cuda, or auto.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: String,
    /// Print one JSON object with the keys tokens, loss and perplexity.
    #[arg(long)]
    json: bool,
}

/// Evaluates and prints.
pub(crate) fn run(args: &EvalArgs) -> Result<(), CliError> {
    let mut startup = Startup::begin()?;
    let prepared = options(args);
    let options = startup.agree(prepared)?;
    match run::evaluate(startup, &options)? {
        Some(found) if args.json => print_json(&found),
        Some(found) => print(&found.to_string()),
        None => Ok(()),
    }
}

fn options(args: &EvalArgs) -> Result<EvaluateOptions, CliError> {
    let device = DeviceChoice::from_name(&args.device)?;
    if device == DeviceChoice::Meta {
        return Err(CliError::Refused("--device meta computes no loss".to_owned()));
    }
    Log::new().install()?;
    Ok(EvaluateOptions {
        model: args.model.clone(),
        step: args.step,
        data: args.data.clone(),
        context: args.context,
        sets: args.set.clone(),
        device,
        ranks: args.ranks,
    })
}
