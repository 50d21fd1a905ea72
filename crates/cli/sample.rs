//! `plimsoll sample`.

use std::io::{ErrorKind, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::CliError;
use inference::{Messages, Piece, SampleOptions, Sampled, Show};
use run::{RunError, Startup};
use telemetry::units::grouped;

use crate::model::ModelArgs;
use crate::output::{note, print, print_json};
use system::terminal;

/// Generate text with a trained model
///
/// Continues one or more prompts and prints them as they come, one after the other. The memory, with the
/// cache of keys and values, is planned first. A prompt and its seed give the same text alone, beside other
/// prompts, and on any grid.
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
    /// Take prompts as messages of a user, each of its own conversation: the model's chat template surrounds
    /// them, and its end of an answer ends a text. Without a prompt, talks with you: each line of standard
    /// input is a message, and earlier messages and answers are part of the next prompt.
    #[arg(long)]
    chat: bool,
    /// Message of the system at the start of every conversation.
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// Further message of the user to every conversation, after an answer; may be repeated.
    #[arg(long, value_name = "TEXT", requires = "chat")]
    turn: Vec<String>,
    /// File of conversations in JSON, as data.kind = "chat" takes, whose last message is answered; answers
    /// after it are left out.
    #[arg(long, value_name = "FILE", requires = "chat")]
    conversations: Option<PathBuf>,
    /// File with a prompt on each line.
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Tokens to continue, as in --prompt-tokens 5,17,9; may be repeated. For a model without a tokenizer.
    #[arg(long, value_name = "TOKENS", value_parser = tokens)]
    prompt_tokens: Vec<Tokens>,
    /// Number of tokens to generate, at most. A text longer than the model's context goes on from the later
    /// half of it.
    #[arg(long, value_name = "N", default_value_t = 320)]
    tokens: usize,
    /// Sampling temperature, which divides the logits; 0 always takes the likeliest token.
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    temperature: f64,
    /// Always take the likeliest token, as --temperature 0.
    #[arg(long, conflicts_with = "temperature")]
    greedy: bool,
    /// Draw among the K likeliest tokens only; 0 among all. Tokens as likely as the last one count too.
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: u32,
    /// Draw among the likeliest tokens only that together have this probability.
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f64,
    /// Divide the positive logits of tokens that the text has by this, and multiply the negative ones.
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    repetition_penalty: f64,
    /// Seed of a prompt's draws; may be repeated, one for each prompt. Prompts after the last seed have the
    /// next numbers [default: the run's seed].
    #[arg(long, value_name = "S")]
    seed: Vec<u64>,
    /// Text that ends a text before it; may be repeated. A token that ends documents does so too.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Prompts at once on each replica of the model, at most 64 on a GPU and 8 on a CPU; more are continued
    /// in turns [default: as many].
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// Print the planned memory, and generate nothing.
    #[arg(long)]
    plan: bool,
    /// Print one JSON object with all texts and their tokens, and the memory of every rank, at the end.
    #[arg(long)]
    json: bool,
}

/// The tokens of one prompt.
#[derive(Clone, Debug)]
struct Tokens(Vec<u32>);

/// Parses numbers between commas.
fn tokens(text: &str) -> Result<Tokens, String> {
    let parsed: Result<_, _> = text.split(',').map(|token| token.trim().parse()).collect();
    parsed.map(Tokens).map_err(|error| format!("numbers with commas between them: {error}"))
}

/// Prints the texts. A reader that closes its end stops it without an error.
pub(crate) fn run(args: &SampleArgs) -> Result<(), CliError> {
    let mut startup = Startup::begin()?;
    let prepared = options(args);
    let options = startup.agree(prepared)?;
    // What the user has typed is on the screen.
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

/// The memory of the ranks, which are listed where they differ.
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

/// The form in which texts are printed.
#[derive(Clone, Copy)]
struct Format {
    /// Whether texts are answers, which have lines of their own.
    is_answer: bool,
    /// Whether prompts are on the screen already.
    is_typed: bool,
}

/// Prints a piece. Several texts have a heading each.
fn show(piece: Piece<'_>, format: Format) -> std::io::Result<()> {
    let end = if format.is_answer { "\n" } else { "" };
    match piece {
        Piece::Begin { of: 1, .. } if format.is_typed => Ok(()),
        Piece::Begin { of: 1, prompt, .. } => terminal::print(&format!("{prompt}{end}")),
        Piece::Begin { number, of, seed, turn, prompt } => {
            let turn = if turn == 0 { String::new() } else { format!("turn {}, ", turn + 1) };
            let number = number + 1;
            terminal::print(&format!("── {number} of {of}, {turn}seed {seed} ──\n{prompt}{end}"))
        }
        Piece::More(text) => terminal::print(text),
        Piece::End(_) => terminal::print("\n"),
    }
}

/// Returns the lines of standard input as messages, each after a sign in a terminal if `shows`; empty lines
/// are skipped.
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
