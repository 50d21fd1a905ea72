//! What is to be tokenized, and how.

use crate::error::{Error, Result};
use data::{Encoding, Tokenizer};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Tokens of a shard unless told otherwise, as in llm.c's and modded-nanogpt's shards of FineWeb.
const SHARD_TOKENS: u64 = 100_000_000;
/// The most tokens that the header of a shard can count.
const MOST_SHARD_TOKENS: u64 = i32::MAX as u64;
/// The largest number of tokens that 16 bits can number.
const MOST_OF_16_BITS: usize = 1 << 16;

/// The format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Format {
    /// Shards with llm.c's header: `train_000000.bin`, `val_000000.bin`.
    LlmC,
    /// nanoGPT's `train.bin` and `val.bin`: 16-bit tokens without a header.
    NanoGpt,
}

/// The part of the tokens that is held out for validation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum HeldOut {
    /// None of them.
    Nothing,
    /// This fraction: of a text its last characters, of other files documents that a generator draws.
    Fraction(f64),
    /// The first tokens, this many.
    Tokens(u64),
    /// The first shard.
    Shard,
}

/// A corpus and how it is to be tokenized.
#[derive(Clone, Debug)]
pub struct Job {
    /// The files, in the order of the tokens.
    pub files: Vec<PathBuf>,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The directory that is made.
    pub output: PathBuf,
    /// The format of the output.
    pub format: Format,
    /// The most tokens of a shard.
    pub shard_tokens: u64,
    /// The key of JSON lines, or the column of Parquet, that holds the text.
    pub text_key: String,
    /// The part that is held out.
    pub held_out: HeldOut,
    /// The token before each document.
    pub separator: Option<u32>,
    /// The text that ends a document within a text file; without one, a file is a document.
    pub document_end: Option<String>,
    /// Whether all files are plain text, whatever their names.
    pub is_plain_text: bool,
    /// Whether what cannot be tokenized is counted and left out rather than refused.
    pub skip_invalid: bool,
    /// Whether progress is shown on standard error.
    pub show_progress: bool,
}

impl Job {
    /// A job with the defaults: llm.c's format, shards of 100 million tokens, nothing held out, the
    /// tokenizer's own separator.
    ///
    /// # Errors
    /// No file; no tokenizer.
    pub fn new(files: Vec<PathBuf>, tokenizer: Tokenizer, output: PathBuf) -> Result<Self> {
        if files.is_empty() {
            return Err(data::Error::NoPaths.into());
        }
        if tokenizer == Tokenizer::None {
            return Err(Error::Refused("the tokenizer \"none\" makes no tokens".to_owned()));
        }
        Ok(Self {
            files,
            separator: tokenizer.separator(),
            tokenizer,
            output,
            format: Format::LlmC,
            shard_tokens: SHARD_TOKENS,
            text_key: "text".to_owned(),
            held_out: HeldOut::Nothing,
            document_end: None,
            is_plain_text: false,
            skip_invalid: false,
            show_progress: false,
        })
    }

    /// Checks the options against each other.
    pub(crate) fn check(&self) -> Result<()> {
        let vocabulary = self.tokenizer.vocabulary();
        let reason = if self.format == Format::NanoGpt && vocabulary > MOST_OF_16_BITS {
            format!("nanoGPT's format has 16 bits for a token, and the tokenizer has {vocabulary} tokens")
        } else if self.format == Format::NanoGpt && self.held_out == HeldOut::Shard {
            "nanoGPT's format has no shards to hold one out".to_owned()
        } else if !(1..=MOST_SHARD_TOKENS).contains(&self.shard_tokens) {
            format!("a shard has from 1 to {MOST_SHARD_TOKENS} tokens, not {}", self.shard_tokens)
        } else if self.document_end.as_ref().is_some_and(String::is_empty) {
            "the text that ends a document is empty".to_owned()
        } else if let HeldOut::Fraction(fraction) = self.held_out
            && !(fraction > 0.0 && fraction < 1.0)
        {
            format!("the validation fraction {fraction} is not between 0 and 1, both excluded")
        } else {
            return Ok(());
        };
        Err(Error::Refused(reason))
    }

    /// How the output encodes tokens.
    pub(crate) fn encoding(&self) -> Encoding {
        match self.format {
            Format::NanoGpt => Encoding::Raw16,
            Format::LlmC if self.tokenizer.vocabulary() <= MOST_OF_16_BITS => Encoding::Shard16,
            Format::LlmC => Encoding::Shard32,
        }
    }

    /// A hexadecimal SHA-256 of everything that the output follows from, with the files by path, length and
    /// time of change.
    pub(crate) fn fingerprint(&self) -> Result<String> {
        let mut text = format!(
            "{} {:?} {} {:?} {:?} {:?} {:?} {} {}\n",
            self.tokenizer.identity(),
            self.format,
            self.shard_tokens,
            self.text_key,
            self.held_out,
            self.separator,
            self.document_end,
            self.is_plain_text,
            self.skip_invalid
        );
        for path in &self.files {
            let metadata = std::fs::metadata(path).map_err(Error::file(path, "read it"))?;
            let (length, seconds, nanoseconds) = (metadata.len(), metadata.mtime(), metadata.mtime_nsec());
            // Writing to a string does not fail.
            let _ = writeln!(text, "{path:?} {length} {seconds} {nanoseconds}");
        }
        Ok(format!("{:x}", Sha256::digest(text)))
    }
}
