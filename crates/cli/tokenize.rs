//! `plimsoll tokenize` and `plimsoll tokenizer train`.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use data::Tokenizer;
use telemetry::units::{counted, grouped};
use tokenize::{Counts, Format, HeldOut, Job};

use crate::error::CliError;
use crate::output::print;
use crate::outputs::{Force, Kind};

/// Create token shards from text, JSON lines and Parquet
///
/// Files may be plain or compressed (.gz, .zst) and larger than memory. A text file is one document; so is
/// each JSON line (.jsonl, .ndjson, .json) and each Parquet row. The tokenizer's separator precedes each
/// document. The directory appears once it is complete; if the command was killed, running it again continues
/// where it stopped. The bytes do not depend on the number of threads.
#[derive(clap::Args, Debug)]
pub(crate) struct TokenizeArgs {
    /// Files and globs of text, JSON lines or Parquet.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<String>,
    /// Tokenizer: bytes, gpt2, or a tokenizer.json or its folder.
    #[arg(long)]
    tokenizer: String,
    /// Directory to create.
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// llmc: shards with a header; nanogpt: train.bin and val.bin of 16-bit tokens, in which text files have
    /// no separator.
    #[arg(long, value_enum, default_value_t = FormatName::Llmc)]
    format: FormatName,
    /// Maximum number of tokens in a shard.
    #[arg(long, value_name = "N", default_value_t = 100_000_000)]
    shard_tokens: u64,
    /// Key of JSON lines, or column of Parquet, with the text.
    #[arg(long, value_name = "KEY", default_value = "text")]
    text_key: String,
    /// Part held out for validation: a fraction (the end of each text file, and randomly drawn documents of
    /// other files), a number of tokens (the first ones), or shard (the first shard) [default: nothing].
    #[arg(long, value_name = "FRACTION|TOKENS|shard")]
    validation: Option<String>,
    /// Token before each document, as the tokenizer writes it, or none to join documents directly [default:
    /// the tokenizer's bos_token, else its eos_token].
    #[arg(long, value_name = "TOKEN")]
    separator: Option<String>,
    /// Text that ends a document within a text file, such as '\n\n'.
    #[arg(long, value_name = "TEXT")]
    document_end: Option<String>,
    /// Skip and count documents that cannot be tokenized.
    #[arg(long)]
    skip_invalid: bool,
}

/// Value of `--separator` for no separator.
const NO_SEPARATOR: &str = "none";

/// Names of shard formats.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum FormatName {
    Llmc,
    Nanogpt,
}

/// Create tokenizers
#[derive(clap::Subcommand, Debug)]
pub(crate) enum TokenizerCommand {
    Train(TrainTokenizerArgs),
}

/// Train a byte-level byte-pair encoding on text, JSON lines and Parquet
#[derive(clap::Args, Debug)]
pub(crate) struct TrainTokenizerArgs {
    /// Files and globs of text, JSON lines or Parquet.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<String>,
    /// Number of tokens, including 256 bytes and <|endoftext|>.
    #[arg(long, value_name = "N")]
    vocabulary: usize,
    /// Path of the tokenizer.json to write; missing folders are created.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Key of JSON lines, or column of Parquet, with the text.
    #[arg(long, value_name = "KEY", default_value = "text")]
    text_key: String,
    #[command(flatten)]
    force: Force,
}

/// Runs `plimsoll tokenize`: tokenizes and prints the counts.
pub(crate) fn run(args: &TokenizeArgs) -> Result<(), CliError> {
    let tokenizer = Tokenizer::from_name(&args.tokenizer).map_err(refused("--tokenizer"))?;
    let joins_documents = args.separator.as_deref() == Some(NO_SEPARATOR);
    let separator = match &args.separator {
        None => tokenizer.separator(),
        Some(_) if joins_documents => None,
        Some(text) => Some(tokenizer.token(text).ok_or_else(|| {
            CliError::Refused(format!("--separator {text}: it is no token of {}", args.tokenizer))
        })?),
    };
    let job = Job {
        separator,
        joins_documents,
        format: match args.format {
            FormatName::Llmc => Format::LlmC,
            FormatName::Nanogpt => Format::NanoGpt,
        },
        shard_tokens: args.shard_tokens,
        text_key: args.text_key.clone(),
        held_out: held_out(args.validation.as_deref())?,
        document_end: args.document_end.as_ref().map(|text| text.replace("\\n", "\n")),
        skip_invalid: args.skip_invalid,
        show_progress: true,
        ..Job::new(files(&args.files)?, tokenizer, args.output.clone())?
    };
    print(&in_words(&tokenize::tokenize(&job)?, &args.output))
}

/// Runs `plimsoll tokenizer`: trains a tokenizer and prints its size.
pub(crate) fn run_tokenizer(command: &TokenizerCommand) -> Result<(), CliError> {
    let TokenizerCommand::Train(args) = command;
    let files = files(&args.files)?;
    tokenize::check_vocabulary(args.vocabulary)?;
    if let Some(folder) = args.output.parent() {
        std::fs::create_dir_all(folder)
            .map_err(|error| CliError::Refused(format!("-o {}: {error}", args.output.display())))?;
    }
    let output = args.force.output("-o", &args.output, Kind::Measurement)?;
    let (json, tokens) = tokenize::trained_tokenizer(files, args.vocabulary, &args.text_key)?;
    output.write(&json)?;
    print(&format!("{tokens} tokens in {}", args.output.display()))
}

fn files(patterns: &[String]) -> Result<Vec<PathBuf>, CliError> {
    data::files(Path::new(""), patterns).map_err(refused("FILE"))
}

fn refused(argument: &str) -> impl FnOnce(data::Error) -> CliError {
    move |error| CliError::Refused(format!("{argument}: {error}"))
}

fn held_out(text: Option<&str>) -> Result<HeldOut, CliError> {
    let Some(text) = text else { return Ok(HeldOut::Nothing) };
    let fraction = || text.parse().ok().filter(|fraction| *fraction > 0.0 && *fraction < 1.0);
    let tokens = || text.parse().ok().filter(|tokens| *tokens > 0).map(HeldOut::Tokens);
    let choice = match text {
        "shard" => Some(HeldOut::Shard),
        _ => tokens().or_else(|| fraction().map(HeldOut::Fraction)),
    };
    choice.ok_or_else(|| {
        let what = "it is a fraction above 0 and below 1, a number of tokens, or shard";
        CliError::Refused(format!("--validation {text}: {what}"))
    })
}

fn in_words(counts: &Counts, output: &Path) -> String {
    let Counts { training_tokens, validation_tokens, documents, bytes, skipped } = counts;
    let mut text = format!(
        "{} training and {} validation tokens of {} ({} bytes) in {}",
        grouped(*training_tokens),
        grouped(*validation_tokens),
        counted(*documents, "document"),
        grouped(*bytes),
        output.display()
    );
    if *skipped > 0 {
        text += &format!("; {} left out as invalid", counted(*skipped, "piece"));
    }
    text
}
