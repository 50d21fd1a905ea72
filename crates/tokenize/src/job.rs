//! A tokenizing job and its options.

use crate::error::{Error, Result};
use crate::kind::Kind;
use data::{Encoding, Tokenizer};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use system::file_error::FileContext;
use system::numbers::hexadecimal;

/// Default number of tokens in a shard, as in llm.c's and modded-nanogpt's shards of FineWeb.
const SHARD_TOKENS: u64 = 100_000_000;
/// The most tokens that the header of a shard can count.
const MOST_SHARD_TOKENS: u64 = i32::MAX as u64;
/// The largest vocabulary that 16 bits can represent.
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
    /// Nothing.
    Nothing,
    /// A fraction: the last characters of a text, and of other files documents drawn by a generator.
    Fraction(f64),
    /// This many tokens, the first ones.
    Tokens(u64),
    /// The first shard.
    Shard,
}

/// A corpus and the options of its tokenization.
#[derive(Clone, Debug)]
pub struct Job {
    /// The files, in the order of their tokens.
    pub files: Vec<PathBuf>,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The directory to create.
    pub output: PathBuf,
    /// The format of the output.
    pub format: Format,
    /// The most tokens of a shard.
    pub shard_tokens: u64,
    /// The key of JSON lines, or the column of Parquet, that holds the text.
    pub text_key: String,
    /// The part that is held out for validation.
    pub held_out: HeldOut,
    /// The token before each document.
    pub separator: Option<u32>,
    /// Whether documents may follow each other without a separator.
    pub joins_documents: bool,
    /// The text that ends a document within a text file; without it, a file is a document.
    pub document_end: Option<String>,
    /// Whether all files are plain text, regardless of their names.
    pub is_plain_text: bool,
    /// Whether invalid input is counted and omitted instead of refused.
    pub skip_invalid: bool,
    /// Whether the record of the output has the hash of the training tokens, which takes reading them once
    /// more.
    pub has_hash: bool,
    /// Whether progress is shown on standard error.
    pub show_progress: bool,
}

impl Job {
    /// Returns a job with the defaults: llm.c's format, shards of 100 million tokens, nothing held out, the
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
            joins_documents: false,
            tokenizer,
            output,
            format: Format::LlmC,
            shard_tokens: SHARD_TOKENS,
            text_key: "text".to_owned(),
            held_out: HeldOut::Nothing,
            document_end: None,
            is_plain_text: false,
            skip_invalid: false,
            has_hash: false,
            show_progress: false,
        })
    }

    pub(crate) fn check(&self) -> Result<()> {
        let vocabulary = self.tokenizer.vocabulary();
        let reason = if self.format == Format::NanoGpt && vocabulary > MOST_OF_16_BITS {
            format!("nanoGPT's format has 16 bits for a token, and the tokenizer has {vocabulary} tokens")
        } else if let Some(separator) = self.separator.filter(|separator| *separator as usize >= vocabulary) {
            format!("the separator, token {separator}, is not among the {vocabulary} of the tokenizer")
        } else if self.separator.is_none() && !self.joins_documents && self.separates() {
            format!(
                "no file of the tokenizer {} names a bos_token or eos_token to separate documents, and they \
                 would run together: name a token by --separator or data.separator, or join them by \
                 --separator none",
                self.tokenizer.name()
            )
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

    /// Returns whether the output has documents that follow each other. nanoGPT's own scripts write no
    /// separator before a text file.
    fn separates(&self) -> bool {
        let is_text = |path: &PathBuf| self.is_plain_text || Kind::of(path) == Kind::Text;
        let has_several = self.files.len() > 1 || self.document_end.is_some();
        !self.files.iter().all(is_text) || has_several && self.format == Format::LlmC
    }

    pub(crate) fn encoding(&self) -> Encoding {
        match self.format {
            Format::NanoGpt => Encoding::Raw16,
            Format::LlmC if self.tokenizer.vocabulary() <= MOST_OF_16_BITS => Encoding::Shard16,
            Format::LlmC => Encoding::Shard32,
        }
    }

    /// Returns a hexadecimal SHA-256 of everything that determines the output, with the files by path, length
    /// and modification time.
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
            let metadata = std::fs::metadata(path).context(path, "read it")?;
            let length = metadata.len();
            let seconds = metadata.mtime();
            let nanoseconds = metadata.mtime_nsec();
            // Writing to a string does not fail.
            let _ = writeln!(text, "{path:?} {length} {seconds} {nanoseconds}");
        }
        Ok(hexadecimal(&Sha256::digest(text)))
    }
}
