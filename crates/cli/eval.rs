//! `plimsoll eval`.

use std::path::PathBuf;

use crate::arguments::count;
use crate::error::CliError;
use inference::EvaluateOptions;
use run::Startup;

use crate::model::{ModelArgs, skips_invalid};
use crate::output::{print, print_json};
use crate::outputs::{Force, Kind, Output};

/// Compute a model's loss on text or token shards, or its accuracy on multiple choice
///
/// Cuts the data into consecutive sequences without overlap, and prints the number of predicted tokens, the
/// mean loss per token in nats, and the perplexity. With --choices, prints the fraction of questions whose
/// correct ending is the likeliest: by the sum of its log-probabilities (acc of lm-evaluation-harness), and
/// by this sum per token (as llm.c scores HellaSwag), per character (acc_norm) and per byte (acc_bytes).
/// Results do not depend on the grid.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  plimsoll eval runs/first\n  \
    plimsoll eval llama/ --data 'books/*.txt' --context 2048 --json -o books.json\n  \
    plimsoll eval llama/ --data 'chats/*.jsonl'\n  \
    plimsoll eval runs/first --choices hellaswag_val.bin\n  \
    plimsoll eval llama/ --choices questions.jsonl --set parallel.data=4\n\n\
    A line of questions.jsonl: {\"context\": \"The sky is\", \"endings\": [\"blue\", \"flat\"], \"label\": 0}")]
pub(crate) struct EvalArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Text files, conversations (JSON lines with messages; the answers are scored) or token shards (.bin),
    /// or globs of them [default: the data that the run held out].
    #[arg(long, value_name = "FILE", num_args = 1..)]
    data: Vec<String>,
    /// File of multiple-choice questions: JSON lines with the keys context (or ctx), endings and label, or an
    /// evaluation file of llm.c (.bin).
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    choices: Option<PathBuf>,
    /// Number of tokens in a sequence [default: as in training, or the longest question].
    #[arg(long, value_name = "N", value_parser = count::<usize>)]
    context: Option<usize>,
    /// Skip and count images that cannot be decoded and lines that are not conversations, instead of failing:
    /// --set data.skip_invalid=true.
    #[arg(long)]
    skip_invalid: bool,
    /// Print one JSON object with the keys model, data (hashes that identify both), tokens, loss,
    /// loss_per_byte, perplexity and, for multiple choice, questions, accuracy, accuracy_per_token,
    /// accuracy_per_character and accuracy_per_byte.
    #[arg(long)]
    json: bool,
    /// Also write the JSON object to a file.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
}

/// Runs the command: evaluates and prints.
pub(crate) fn run(args: &EvalArgs) -> Result<(), CliError> {
    let mut startup = Startup::begin()?;
    let prepared = options(args);
    let (options, output) = startup.agree(prepared)?;
    let Some(evaluation) = inference::evaluate(startup, &options)? else { return Ok(()) };
    if let Some(output) = output {
        let text = serde_json::to_string_pretty(&evaluation).unwrap_or_default() + "\n";
        output.write(&text)?;
    }
    match args.json {
        true => print_json(&evaluation),
        false => print(&evaluation.to_string()),
    }
}

fn options(args: &EvalArgs) -> Result<(EvaluateOptions, Option<Output>), CliError> {
    let device = args.model.device("computes no loss")?;
    let ModelArgs { model, base, set, ranks, .. } = &args.model;
    let output = args.output.as_deref().map(|path| args.force.output("-o", path, Kind::Measurement));
    let options = EvaluateOptions {
        model: model.clone(),
        base: base.clone(),
        step: args.model.step()?,
        average: args.model.ema,
        data: args.data.clone(),
        choices: args.choices.clone(),
        context: args.context,
        sets: [set.clone(), skips_invalid(args.skip_invalid)].concat(),
        device,
        ranks: *ranks,
    };
    Ok((options, output.transpose()?))
}
