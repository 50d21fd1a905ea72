//! Tokenizers described by a `tokenizer.json`.

use crate::Error;
use crate::data_file::DataFile;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Tokens that commonly precede or end a document, the likeliest first.
const SEPARATORS: [&str; 8] =
    ["<|begin_of_text|>", "<|endoftext|>", "<s>", "<bos>", "</s>", "<|end_of_text|>", "<eos>", "[CLS]"];

/// Tokenizers that this process has loaded, because a plan reads a configuration many times.
static LOADED: Mutex<Vec<Arc<FileTokenizer>>> = Mutex::new(Vec::new());

/// A tokenizer of Hugging Face's library, read from its `tokenizer.json`.
#[derive(Debug)]
pub struct FileTokenizer {
    path: PathBuf,
    name: String,
    json: Vec<u8>,
    sha256: String,
    tokenizer: tokenizers::Tokenizer,
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
    /// Reads the file, or returns the tokenizer of an earlier call for the same contents.
    ///
    /// # Errors
    /// A file that is missing or unreadable; [`Error::BadTokenizer`] if it is no tokenizer.
    pub(super) fn load(path: &Path) -> Result<Arc<Self>, Error> {
        let file = DataFile::open(path)?;
        let mut json = vec![0; usize::try_from(file.len()).map_err(|_| Error::TooLong)?];
        file.read_at(0, &mut json)?;
        let sha256 = format!("{:x}", Sha256::digest(&json));
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = loaded.iter().find(|known| known.path == path && known.sha256 == sha256) {
            return Ok(Arc::clone(known));
        }
        let read = Arc::new(Self::parse(path, json, sha256)?);
        loaded.push(Arc::clone(&read));
        Ok(read)
    }

    fn parse(path: &Path, json: Vec<u8>, sha256: String) -> Result<Self, Error> {
        let bad = |reason: String| Error::BadTokenizer { path: path.to_path_buf(), reason };
        let mut tokenizer =
            tokenizers::Tokenizer::from_bytes(&json).map_err(|error| bad(error.to_string()))?;
        // Text that spells out a special token is encoded as text, and nothing is truncated.
        tokenizer.set_encode_special_tokens(true);
        tokenizer.with_truncation(None).map_err(|error| bad(error.to_string()))?.with_padding(None);
        let largest = tokenizer.get_vocab(true).into_values().max();
        let vocabulary = largest.ok_or_else(|| bad("it has no token".to_owned()))? as usize + 1;
        let described: serde_json::Value =
            serde_json::from_slice(&json).map_err(|error| bad(error.to_string()))?;
        let is_byte_level =
            ["pre_tokenizer", "decoder"].iter().all(|part| contains(&described[part], "\"ByteLevel\""));
        let splits_at_spaces = is_byte_level && splits_at_spaces(&described);
        let (path, name) = (path.to_path_buf(), path.to_string_lossy().into_owned());
        Ok(Self { path, name, json, sha256, tokenizer, vocabulary, is_byte_level, splits_at_spaces })
    }

    /// The bytes of the file.
    #[must_use]
    pub fn json(&self) -> &[u8] {
        &self.json
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

    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        let encoded = self.tokenizer.encode_fast(text, false);
        let encoded = encoded.map_err(|error| Error::NotEncoded { reason: error.to_string() })?;
        Ok(encoded.get_ids().to_vec())
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

/// Returns whether a byte-level tokenizer splits at spaces, adds none before its text and changes none.
fn splits_at_spaces(described: &serde_json::Value) -> bool {
    let (before, normalizer) = (&described["pre_tokenizer"], &described["normalizer"]);
    let by_pattern = contains(before, "\"use_regex\":true") || contains(before, "\"Split\"");
    let keeps_spaces = normalizer.is_null() || normalizer["type"] == "NFC";
    by_pattern && keeps_spaces && !contains(before, "\"add_prefix_space\":true")
}

fn contains(part: &serde_json::Value, text: &str) -> bool {
    part.to_string().contains(text)
}
