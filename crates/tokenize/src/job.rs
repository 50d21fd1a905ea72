//! Options of tokenizing a corpus.

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

/// Default number of tokens per shard, as in llm.c's and modded-nanogpt's shards of FineWeb.
const SHARD_TOKENS: u64 = 100_000_000;
/// Maximum number of tokens that a shard's header can store.
const MOST_SHARD_TOKENS: u64 = i32::MAX as u64;
/// Maximum vocabulary of 16-bit tokens.
const MOST_OF_16_BITS: usize = 1 << 16;

/// The format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Format {
    /// llm.c's shards with headers: `train_000000.bin`, `val_000000.bin`.
    LlmC,
    /// nanoGPT's `train.bin` and `val.bin`: 16-bit tokens without a header.
    NanoGpt,
}

/// Selects the tokens held out for validation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum HeldOut {
    /// No tokens are held out.
    Nothing,
    /// This fraction: of a text, its last characters; of other files, documents drawn at random.
    Fraction(f64),
    /// The first tokens, this many.
    Tokens(u64),
    /// The first shard.
    Shard,
}

/// A corpus and the options of its tokenization.
#[derive(Clone, Debug)]
pub struct Job {
    /// The input files, in order.
    pub files: Vec<PathBuf>,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The directory to create.
    pub output: PathBuf,
    /// The format of the output.
    pub format: Format,
    /// Maximum number of tokens per shard.
    pub shard_tokens: u64,
    /// Key of JSON lines or column of Parquet that contains the text.
    pub text_key: String,
    /// Selects the tokens held out for validation.
    pub held_out: HeldOut,
    /// The token written before each document.
    pub separator: Option<u32>,
    /// Whether documents may be concatenated without a separator.
    pub joins_documents: bool,
    /// Text that ends a document within a text file; if unset, each file is one document.
    pub document_end: Option<String>,
    /// Whether to read all files as plain text, whatever their names.
    pub is_plain_text: bool,
    /// Whether to skip and count invalid input instead of failing.
    pub skip_invalid: bool,
    /// Whether to record a hash of the training tokens, which reads them once more.
    pub has_hash: bool,
    /// Whether to show progress on standard error.
    pub show_progress: bool,
}

impl Job {
    /// Returns a job with default options: llm.c's format, shards of 100 million tokens, nothing held out,
    /// the tokenizer's own separator.
    ///
    /// # Errors
    /// There is no file or no tokenizer.
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

    /// Returns whether documents need a separator. nanoGPT's own scripts write none before a single text
    /// file.
    fn separates(&self) -> bool {
        let is_text = |path: &PathBuf| self.is_plain_text || Kind::from_name(path) == Kind::Text;
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

    /// Returns a hexadecimal SHA-256 of everything that determines the output. Files are identified by path,
    /// length and modification time.
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
