//! Tokenizers described by a `tokenizer.json`.

use crate::Error;
use crate::data_file::DataFile;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::ops::Range;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Tokens that commonly precede or end a document, the likeliest first.
const SEPARATORS: [&str; 8] =
    ["<|begin_of_text|>", "<|endoftext|>", "<s>", "<bos>", "</s>", "<|end_of_text|>", "<eos>", "[CLS]"];

/// The name of a tokenizer's file.
pub(super) const TOKENIZER: &str = "tokenizer.json";

/// Files beside a tokenizer that belong to it: its special tokens, and its chat template.
const BESIDE: [&str; 2] = [CONFIGURATION, "chat_template.jinja"];

/// The configuration beside a tokenizer.
const CONFIGURATION: &str = "tokenizer_config.json";

/// The most bytes of such a file.
const MOST_BESIDE: u64 = 16 << 20;

/// Tokenizers that this process has loaded, because a plan reads a configuration many times.
static LOADED: Mutex<Vec<Arc<FileTokenizer>>> = Mutex::new(Vec::new());

/// A tokenizer of Hugging Face's library, read from its `tokenizer.json`.
#[derive(Debug)]
pub struct FileTokenizer {
    path: PathBuf,
    name: String,
    json: Vec<u8>,
    sha256: String,
    /// The files of [`BESIDE`] that exist.
    beside: Vec<(&'static str, Vec<u8>)>,
    /// Takes special tokens that a text spells out for text.
    tokenizer: tokenizers::Tokenizer,
    /// Knows them, and adds nothing to a text.
    with_special: OnceLock<tokenizers::Tokenizer>,
    vocabulary: usize,
    is_byte_level: bool,
    splits_at_spaces: bool,
}

impl PartialEq for FileTokenizer {
    fn eq(&self, other: &Self) -> bool {
        self.sha256 == other.sha256
    }
}

impl FileTokenizer {
    /// Reads the file, or that of a folder. An earlier call for the same contents gives the same tokenizer.
    ///
    /// # Errors
    /// A file that is missing or unreadable; [`Error::BadTokenizer`] if it is no tokenizer.
    pub(super) fn load(path: &Path) -> Result<Arc<Self>, Error> {
        let path = &if path.is_dir() { path.join(TOKENIZER) } else { path.to_path_buf() };
        let file = DataFile::open(path)?;
        let mut json = vec![0; usize::try_from(file.len()).map_err(|_| Error::TooLong)?];
        file.read_at(0, &mut json)?;
        let sha256 = format!("{:x}", Sha256::digest(&json));
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = loaded.iter().find(|entry| entry.path == *path && entry.sha256 == sha256) {
            return Ok(Arc::clone(entry));
        }
        let read = Arc::new(Self::parse(path, json, sha256)?);
        loaded.push(Arc::clone(&read));
        Ok(read)
    }

    fn parse(path: &Path, json: Vec<u8>, sha256: String) -> Result<Self, Error> {
        let bad = |reason: String| Error::BadTokenizer { path: path.to_path_buf(), reason };
        // The library panics on some texts that are no JSON, and on some objects that are no tokenizer.
        let described: Value = serde_json::from_slice(&json).map_err(|error| bad(error.to_string()))?;
        let text = str::from_utf8(&json).map_err(|error| bad(error.to_string()))?;
        // Parsing a string is compiled within the library, once; parsing bytes would be compiled here again.
        let built = catch_unwind(|| text.parse::<tokenizers::Tokenizer>())
            .map_err(|_| bad("it does not describe a tokenizer".to_owned()))?;
        let mut tokenizer = built.map_err(|error| bad(error.to_string()))?;
        // Text that spells out a special token is encoded as text, and nothing is truncated.
        tokenizer.set_encode_special_tokens(true);
        tokenizer.with_truncation(None).map_err(|error| bad(error.to_string()))?.with_padding(None);
        let largest = tokenizer.get_vocab(true).into_values().max();
        let vocabulary = largest.ok_or_else(|| bad("it has no token".to_owned()))? as usize + 1;
        let is_byte_level =
            ["pre_tokenizer", "decoder"].iter().all(|part| contains(&described[part], "\"ByteLevel\""));
        let splits_at_spaces = is_byte_level && splits_at_spaces(&described);
        let beside = files_beside(path)?;
        let (path, name) = (path.to_path_buf(), path.to_string_lossy().into_owned());
        let with_special = OnceLock::new();
        Ok(Self {
            path,
            name,
            json,
            sha256,
            beside,
            tokenizer,
            with_special,
            vocabulary,
            is_byte_level,
            splits_at_spaces,
        })
    }

    /// The bytes of the file.
    #[must_use]
    pub fn json(&self) -> &[u8] {
        &self.json
    }

    /// The files that belong to the tokenizer and were beside it, by name.
    #[must_use]
    pub fn beside(&self) -> &[(&'static str, Vec<u8>)] {
        &self.beside
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn sha256(&self) -> &str {
        &self.sha256
    }

    pub(super) fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    pub(super) fn token(&self, text: &str) -> Option<u32> {
        self.tokenizer.token_to_id(text)
    }

    pub(super) fn separator(&self) -> Option<u32> {
        SEPARATORS.iter().find_map(|text| self.token(text))
    }

    pub(super) fn end(&self) -> Option<u32> {
        let configuration = self.beside.iter().find(|(name, _)| *name == CONFIGURATION);
        let end = configuration.and_then(|(_, text)| {
            let value = serde_json::from_slice::<Value>(text).ok()?;
            let end = &value["eos_token"];
            self.token(end.as_str().or_else(|| end["content"].as_str())?)
        });
        end.or_else(|| self.separator())
    }

    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        let encoded = self.tokenizer.encode_fast(text, false).map_err(not_encoded)?;
        Ok(encoded.get_ids().to_vec())
    }

    pub(super) fn encode_spans(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>, Error> {
        let encoded = self.encode_special(text)?;
        let spans = encoded.get_offsets().iter().map(|(start, end)| *start..*end);
        Ok(encoded.get_ids().iter().copied().zip(spans).collect())
    }

    pub(super) fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, Error> {
        // As transformers do, whatever tokenizer_config.json says about them.
        let encoded = self.encode_special(text)?;
        let processed = self.tokenizer.post_process(encoded, None, true).map_err(not_encoded)?;
        Ok(processed.get_ids().to_vec())
    }

    /// Encodes a text in which special tokens may be spelled out, with the bytes of each token.
    fn encode_special(&self, text: &str) -> Result<tokenizers::Encoding, Error> {
        let tokenizer = self.with_special.get_or_init(|| {
            let mut tokenizer = self.tokenizer.clone();
            tokenizer.set_encode_special_tokens(false);
            tokenizer.with_post_processor(None::<tokenizers::PostProcessorWrapper>);
            tokenizer
        });
        tokenizer.encode(text, false).map_err(not_encoded)
    }

    pub(super) fn decode(&self, tokens: &[u32]) -> String {
        let unknown = |token: &u32| self.tokenizer.id_to_token(*token).is_none();
        let mut text = String::new();
        // Runs of known tokens; the others have no text.
        for (index, run) in tokens.split(unknown).enumerate() {
            if index > 0 {
                text.push(char::REPLACEMENT_CHARACTER);
            }
            text += &self.tokenizer.decode(run, false).unwrap_or_default();
        }
        text
    }

    pub(super) fn byte_lengths(&self) -> Option<Vec<u32>> {
        if !self.is_byte_level {
            return None;
        }
        let added = self.tokenizer.get_added_tokens_decoder();
        let length = |token: u32| match added.get(&token) {
            Some(added) if added.special => 0,
            Some(added) => added.content.len() as u32,
            // A character of a byte-level token represents one byte.
            None => self.tokenizer.id_to_token(token).map_or(0, |text| text.chars().count() as u32),
        };
        Some((0..self.vocabulary as u32).map(length).collect())
    }

    pub(super) fn splits_at_spaces(&self) -> bool {
        self.splits_at_spaces
    }
}

fn not_encoded(error: tokenizers::Error) -> Error {
    Error::NotEncoded { reason: error.to_string() }
}

/// Reads the files of [`BESIDE`] that exist beside a tokenizer.
fn files_beside(path: &Path) -> Result<Vec<(&'static str, Vec<u8>)>, Error> {
    let mut files = Vec::new();
    for name in BESIDE {
        let path = path.with_file_name(name);
        if path.is_file() {
            let file = DataFile::open(&path)?;
            if file.len() > MOST_BESIDE {
                let reason = format!("it has more than {MOST_BESIDE} bytes");
                return Err(Error::BadTokenizer { path, reason });
            }
            let mut text = vec![0; usize::try_from(file.len()).map_err(|_| Error::TooLong)?];
            file.read_at(0, &mut text)?;
            files.push((name, text));
        }
    }
    Ok(files)
}

/// Returns whether a byte-level tokenizer splits at spaces, adds none before its text and changes none.
fn splits_at_spaces(described: &Value) -> bool {
    let (before, normalizer) = (&described["pre_tokenizer"], &described["normalizer"]);
    let by_pattern = contains(before, "\"use_regex\":true") || contains(before, "\"Split\"");
    let keeps_spaces = normalizer.is_null() || normalizer["type"] == "NFC";
    by_pattern && keeps_spaces && !contains(before, "\"add_prefix_space\":true")
}

fn contains(part: &Value, text: &str) -> bool {
    part.to_string().contains(text)
}
