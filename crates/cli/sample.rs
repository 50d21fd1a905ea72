//! `plimsoll sample`.

use std::io::{ErrorKind, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::CliError;
use inference::{Messages, SampleOptions, Sampled, Show, TextEvent};
use run::{RunError, Startup};
use telemetry::units::grouped;

use crate::model::ModelArgs;
use crate::output::{note, print, print_json};
use system::terminal;

/// Generate text with a trained model
///
/// Continues one or more prompts and prints the texts as they are generated, one after the other. Memory is
/// planned first, including the cache of keys and values. A prompt with some seed always generates the same
/// text: alone, beside other prompts, and on any grid.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  plimsoll sample runs/first --prompt \"pub fn \"\n  \
    plimsoll sample runs/first --prompt A --prompt B --seed 1 --seed 1 --top-p 0.9\n  \
    plimsoll sample llama/ --prompts questions.txt --greedy --stop $'\\n' --json\n  \
    plimsoll sample runs/chat --chat --system \"Be brief.\"\n  \
    plimsoll sample runs/chat --chat --prompt \"How are you?\" --turn \"Why?\"\n  \
    plimsoll sample llama/ --tokens 4096 --plan\n  \
    plimsoll sample llama/ --prompts many.txt --set parallel.data=2 --set parallel.pipeline=2")]
pub(crate) struct SampleArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Text to continue; may be repeated [default: a line feed].
    #[arg(long, value_name = "TEXT")]
    prompt: Vec<String>,
    /// Treat each prompt as a user's message in its own conversation. The model's chat template surrounds it,
    /// and the template's end of an answer ends the text. Without a prompt, chats interactively: each line of
    /// standard input is a message, and earlier messages and answers are part of the next prompt.
    #[arg(long)]
    chat: bool,
    /// System message at the start of every conversation.
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// Further user message for every conversation, after an answer; may be repeated.
    #[arg(long, value_name = "TEXT", requires = "chat")]
    turn: Vec<String>,
    /// JSON file of conversations, in the format of data.kind = "chat". The last message of each is answered;
    /// answers after it are ignored.
    #[arg(long, value_name = "FILE", requires = "chat")]
    conversations: Option<PathBuf>,
    /// File with one prompt per line.
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Prompt as token numbers, as in --prompt-tokens 5,17,9; may be repeated. For a model without a
    /// tokenizer.
    #[arg(long, value_name = "TOKENS", value_parser = tokens)]
    prompt_tokens: Vec<Tokens>,
    /// Maximum number of new tokens. When a text reaches the model's context, generation continues from its
    /// later half.
    #[arg(long, value_name = "N", default_value_t = 320)]
    tokens: usize,
    /// Sampling temperature, which divides the logits; 0 always takes the likeliest token.
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    temperature: f64,
    /// Always take the likeliest token; same as --temperature 0.
    #[arg(long, conflicts_with = "temperature")]
    greedy: bool,
    /// Draw only among the K likeliest tokens; 0 for all. Tokens as likely as the K-th are included.
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: u32,
    /// Draw only among the likeliest tokens whose probabilities together reach P.
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f64,
    /// Divide the positive logits of tokens already in the text by X, and multiply negative ones.
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    repetition_penalty: f64,
    /// Seed for a prompt's draws; may be repeated, one per prompt. Further prompts use the numbers after the
    /// last seed [default: the run's seed].
    #[arg(long, value_name = "S")]
    seed: Vec<u64>,
    /// Stop generating a text before this string; may be repeated. A token that ends documents also stops it.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Number of prompts at once on each replica of the model, at most 64 on a GPU and 8 on a CPU; further
    /// prompts follow later [default: the maximum].
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// Print the planned memory, and generate nothing.
    #[arg(long)]
    plan: bool,
    /// Print one JSON object at the end, with all texts, their tokens, and the memory of every rank.
    #[arg(long)]
    json: bool,
}

/// Token numbers of one prompt.
#[derive(Clone, Debug)]
struct Tokens(Vec<u32>);

/// Parses comma-separated numbers.
fn tokens(text: &str) -> Result<Tokens, String> {
    let parsed: Result<_, _> = text.split(',').map(|token| token.trim().parse()).collect();
    parsed.map(Tokens).map_err(|error| format!("numbers with commas between them: {error}"))
}

/// Runs the command: prints the texts. Stops without an error if the reader closes the output.
pub(crate) fn run(args: &SampleArgs) -> Result<(), CliError> {
    let mut startup = Startup::begin()?;
    let prepared = options(args);
    let options = startup.agree(prepared)?;
    // Text that the user typed is already on the screen.
    let is_typed = options.messages.is_some() && std::io::stdin().is_terminal();
    let format = Format { is_answer: args.chat, is_typed };
    let show: Show = match args.json {
        true => Arc::new(|_| Ok(())),
        false => Arc::new(move |piece| show(piece, format)),
    };
    let unread = |error: &std::io::Error| error.kind() == ErrorKind::BrokenPipe;
    let sampled = match inference::sample(startup, &options, show) {
        Err(RunError::File { source, .. }) if unread(&source) => return Ok(()),
        done => done?,
    };
    match sampled {
        Some(sampled) if args.json => print_json(&sampled),
        Some(sampled) if args.plan => print(&memory(&sampled)),
        Some(sampled) => {
            let rate = grouped((sampled.tokens as f64 / sampled.seconds).round() as u64);
            note(&format!("{} tokens, {rate} tokens/s; {}", grouped(sampled.tokens), memory(&sampled)));
            Ok(())
        }
        None => Ok(()),
    }
}

/// Describes the memory of the ranks, in one line if all are equal.
fn memory(sampled: &Sampled) -> String {
    let lines: Vec<_> = sampled.memory.iter().map(inference::RankMemory::in_words).collect();
    match lines.as_slice() {
        [first, others @ ..] if others.iter().all(|line| line == first) => match others.len() {
            0 => first.clone(),
            _ => format!("each rank: {first}"),
        },
        all => {
            let rank = |(rank, line): (usize, &String)| format!("rank {rank}: {line}");
            all.iter().enumerate().map(rank).collect::<Vec<_>>().join("\n")
        }
    }
}

/// Format in which generated texts are printed.
#[derive(Clone, Copy)]
struct Format {
    /// Whether texts are answers, each on its own line.
    is_answer: bool,
    /// Whether prompts are already on the screen.
    is_typed: bool,
}

/// Prints one event of generation. Several texts get a heading each.
fn show(piece: TextEvent<'_>, format: Format) -> std::io::Result<()> {
    let end = if format.is_answer { "\n" } else { "" };
    match piece {
        TextEvent::Begin { texts: 1, .. } if format.is_typed => Ok(()),
        TextEvent::Begin { texts: 1, prompt, .. } => terminal::print(&format!("{prompt}{end}")),
        TextEvent::Begin { number, texts, seed, turn, prompt } => {
            let turn = if turn == 0 { String::new() } else { format!("turn {}, ", turn + 1) };
            let number = number + 1;
            terminal::print(&format!("── {number} of {texts}, {turn}seed {seed} ──\n{prompt}{end}"))
        }
        TextEvent::More(text) => terminal::print(text),
        TextEvent::End(_) => terminal::print("\n"),
    }
}

/// Returns the lines of standard input as messages, skipping empty ones. If `shows` and standard input is a
/// terminal, each is preceded by an input sign.
fn typed(shows: bool) -> Messages {
    Messages::new(move || {
        let is_terminal = shows && std::io::stdin().is_terminal();
        loop {
            if is_terminal {
                terminal::print("> ")?;
            }
            let mut line = String::new();
            if std::io::stdin().read_line(&mut line)? == 0 {
                return Ok(None);
            }
            let message = line.trim();
            if !message.is_empty() {
                return Ok(Some(message.to_owned()));
            }
        }
    })
}

fn options(args: &SampleArgs) -> Result<SampleOptions, CliError> {
    let device = args.model.device("computes no text; --plan plans memory")?;
    let has_prompt = !args.prompt.is_empty() || args.prompts.is_some() || !args.prompt_tokens.is_empty();
    let talks = args.chat && !has_prompt && args.conversations.is_none() && args.turn.is_empty();
    let ModelArgs { model, base, set, ranks, .. } = &args.model;
    Ok(SampleOptions {
        model: model.clone(),
        base: base.clone(),
        step: args.model.step()?,
        average: args.model.ema,
        prompts: args.prompt.clone(),
        prompt_file: args.prompts.clone(),
        chat: args.chat,
        system: args.system.clone(),
        turns: args.turn.clone(),
        conversations: args.conversations.iter().cloned().collect(),
        messages: talks.then(|| typed(!args.json)),
        prompt_tokens: args.prompt_tokens.iter().map(|tokens| tokens.0.clone()).collect(),
        tokens: args.tokens,
        temperature: if args.greedy { 0.0 } else { args.temperature },
        top_k: args.top_k,
        top_p: args.top_p,
        repetition_penalty: args.repetition_penalty,
        seeds: args.seed.clone(),
        stop: args.stop.clone(),
        batch: args.batch,
        sets: set.clone(),
        device,
        ranks: *ranks,
        plan_only: args.plan,
    })
}
