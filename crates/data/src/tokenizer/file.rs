//! Tokenizers defined by a `tokenizer.json` and the files beside it.

use crate::Error;
use crate::data_file::DataFile;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use system::numbers::hexadecimal;
use tokenizers::{Encoding, PostProcessorWrapper};

use super::cuts::cuts_at_spaces;
use super::damage;
use super::description::Description;
use super::folder::{BESIDE, TokenizerFolder};
use super::special_tokens::SpecialTokens;
use super::token_bytes::{TokenBytes, VocabularyToken};

pub(super) const TOKENIZER: &str = "tokenizer.json";
const MOST_BYTES: u64 = 512 << 20;

/// Tokenizers that this process has loaded, kept because a plan reads a configuration many times.
static LOADED: Mutex<Vec<Arc<FileTokenizer>>> = Mutex::new(Vec::new());

/// A tokenizer of Hugging Face's library, loaded from its `tokenizer.json` and the files beside it.
#[derive(Debug)]
pub struct FileTokenizer {
    path: PathBuf,
    name: String,
    json: Vec<u8>,
    sha256: String,
    /// SHA-256 of everything that affects tokenization.
    identity: String,
    folder: TokenizerFolder,
    special: SpecialTokens,
    special_numbers: BTreeSet<u32>,
    /// Encodes special tokens that a text spells out as plain text.
    tokenizer: tokenizers::Tokenizer,
    /// Recognises special tokens that a text spells out. Adds no tokens to a text.
    with_special: OnceLock<tokenizers::Tokenizer>,
    splits_special: bool,
    vocabulary: usize,
    decoder: Value,
    /// Bytes of each token; `None` if the library must decode.
    token_bytes: OnceLock<Option<TokenBytes>>,
    is_byte_level: bool,
    cuts_at_spaces: bool,
}

impl PartialEq for FileTokenizer {
    fn eq(&self, other: &Self) -> bool {
        self.identity == other.identity && self.special == other.special
    }
}

impl FileTokenizer {
    /// Names of the files beside a `tokenizer.json` that belong to it.
    pub const BESIDE: [&str; 5] = BESIDE;

    /// Loads a tokenizer file, or the one in a folder. Returns the same tokenizer as an earlier call with the
    /// same contents.
    ///
    /// # Errors
    /// A file is missing or unreadable; [`Error::BadTokenizer`] if it is not a tokenizer;
    /// [`Error::BadTokenizerFile`] for an invalid file beside it.
    pub(super) fn load(path: &Path) -> Result<Arc<Self>, Error> {
        // A folder of the file's own name is not the folder that has it.
        let is_parent = path.is_dir() && !path.ends_with(TOKENIZER);
        let path = &if is_parent { path.join(TOKENIZER) } else { path.to_path_buf() };
        let json = DataFile::open(path)?.read_whole(MOST_BYTES)?;
        let sha256 = hexadecimal(&Sha256::digest(&json));
        let folder = TokenizerFolder::read(path)?;
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same =
            |entry: &&Arc<Self>| entry.path == *path && entry.sha256 == sha256 && entry.folder == folder;
        if let Some(entry) = loaded.iter().find(is_same) {
            return Ok(Arc::clone(entry));
        }
        let read = Arc::new(Self::parse(path, json, sha256, folder)?);
        loaded.push(Arc::clone(&read));
        Ok(read)
    }

    fn parse(path: &Path, json: Vec<u8>, sha256: String, folder: TokenizerFolder) -> Result<Self, Error> {
        let bad = |reason: String| Error::BadTokenizer { path: path.to_path_buf(), reason };
        // The library panics on some texts that are no JSON, and on some objects that are no tokenizer.
        let mut described: Value = serde_json::from_slice(&json).map_err(|error| bad(error.to_string()))?;
        damage::check(&described).map_err(bad)?;
        let text = str::from_utf8(&json).map_err(|error| bad(error.to_string()))?;
        // Parsing a string is compiled within the library, once; parsing bytes would be compiled here again.
        let built = catch_unwind(|| text.parse::<tokenizers::Tokenizer>())
            .map_err(|_| bad("it does not describe a tokenizer".to_owned()))?;
        let mut tokenizer = built.map_err(|error| bad(error.to_string()))?;
        // Text that spells out a special token is encoded as text, and nothing is truncated.
        tokenizer.set_encode_special_tokens(true);
        tokenizer.with_truncation(None).map_err(|error| bad(error.to_string()))?.with_padding(None);
        let known: Vec<_> = tokenizer.get_added_tokens_decoder().into_values().collect();
        let description = Description::read(&folder, &known, &|text| tokenizer.token_to_id(text).is_some())?;
        catch_unwind(AssertUnwindSafe(|| tokenizer.add_tokens(&description.added)))
            .map_err(|_| bad("the tokens of the files beside it cannot be added to it".to_owned()))?;
        let identity = match (description.added.is_empty(), description.splits_special) {
            (true, false) => sha256.clone(),
            (_, splits) => {
                let more = format!("{sha256} {splits} {:?}", description.added);
                hexadecimal(&Sha256::digest(more))
            }
        };
        let largest = tokenizer.get_vocab(true).into_values().max();
        let largest = largest.ok_or_else(|| bad("it has no token".to_owned()))?;
        damage::check_number(largest).map_err(bad)?;
        let special = catch_unwind(AssertUnwindSafe(|| SpecialTokens::new(&tokenizer, &description)))
            .map_err(|_| bad("its post_processor cannot be applied".to_owned()))?;
        let added = tokenizer.get_added_tokens_decoder();
        let special_numbers = added.iter().filter(|(_, token)| token.special).map(|(number, _)| *number);
        let parts = ["pre_tokenizer", "decoder"];
        let is_byte_level = parts.iter().all(|part| described[*part].to_string().contains("\"ByteLevel\""));
        Ok(Self {
            path: path.to_path_buf(),
            name: path.to_string_lossy().into_owned(),
            json,
            sha256,
            identity,
            folder,
            special,
            special_numbers: special_numbers.collect(),
            cuts_at_spaces: cuts_at_spaces(&described, added.values()),
            tokenizer,
            with_special: OnceLock::new(),
            splits_special: description.splits_special,
            vocabulary: largest as usize + 1,
            decoder: described["decoder"].take(),
            token_bytes: OnceLock::new(),
            is_byte_level,
        })
    }

    /// Returns the bytes of the `tokenizer.json`.
    #[must_use]
    pub fn json(&self) -> &[u8] {
        &self.json
    }

    /// Returns (name, contents) of the files beside it that belong to the tokenizer. Copied to another folder
    /// together with [`Self::json`], they give the same tokenizer.
    #[must_use]
    pub fn beside(&self) -> &[(&'static str, Vec<u8>)] {
        &self.folder.files
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn identity(&self) -> &str {
        &self.identity
    }

    pub(super) fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    pub(super) fn token(&self, text: &str) -> Option<u32> {
        self.tokenizer.token_to_id(text)
    }

    pub(super) fn text_of(&self, token: u32) -> Option<String> {
        self.tokenizer.id_to_token(token)
    }

    pub(super) fn special(&self) -> &SpecialTokens {
        &self.special
    }

    pub(super) fn is_special(&self, token: u32) -> bool {
        self.special_numbers.contains(&token)
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
        // As transformers do, whatever tokenizer_config.json says about the tokens around a text.
        let encoded = self.encode_special(text)?;
        let processed = self.tokenizer.post_process(encoded, None, true).map_err(not_encoded)?;
        Ok(processed.get_ids().to_vec())
    }

    /// Encodes a text in which special tokens may be spelled out, with the byte range of each token.
    fn encode_special(&self, text: &str) -> Result<Encoding, Error> {
        let tokenizer = self.with_special.get_or_init(|| {
            let mut tokenizer = self.tokenizer.clone();
            tokenizer.set_encode_special_tokens(self.splits_special);
            tokenizer.with_post_processor(None::<PostProcessorWrapper>);
            tokenizer
        });
        tokenizer.encode(text, false).map_err(not_encoded)
    }

    /// Returns the bytes of each token; `None` if the decoder does not work token by token.
    pub(super) fn token_bytes(&self) -> Option<&TokenBytes> {
        let bytes = self.token_bytes.get_or_init(|| {
            let added = self.tokenizer.get_added_tokens_decoder();
            let tokens = (0..self.vocabulary as u32).map(|token| {
                let text = self.tokenizer.id_to_token(token)?;
                Some(VocabularyToken { text, is_added: added.contains_key(&token) })
            });
            TokenBytes::new(&self.decoder, tokens)
        });
        bytes.as_ref()
    }

    /// Decodes with the library; ids beyond the vocabulary become U+FFFD.
    pub(super) fn decode_by_library(&self, tokens: &[u32]) -> String {
        let unknown = |token: &u32| self.tokenizer.id_to_token(*token).is_none();
        let mut text = String::new();
        // Runs of known tokens; the others have no text.
        for (index, run) in tokens.split(unknown).enumerate() {
            if index > 0 {
                text.push(char::REPLACEMENT_CHARACTER);
            }
            // The library panics on some decoders.
            let decoded = catch_unwind(AssertUnwindSafe(|| self.tokenizer.decode(run, false)));
            text += &decoded.ok().and_then(Result::ok).unwrap_or_default();
        }
        text
    }

    pub(super) fn byte_lengths(&self) -> Option<Vec<u32>> {
        let bytes = self.token_bytes().filter(|_| self.is_byte_level)?;
        let length = |token: u32| match self.is_special(token) {
            true => 0,
            false => bytes.get(token).map_or(0, |bytes| bytes.len() as u32),
        };
        Some((0..self.vocabulary as u32).map(length).collect())
    }

    pub(super) fn cuts_at_spaces(&self) -> bool {
        self.cuts_at_spaces
    }
}

fn not_encoded(error: tokenizers::Error) -> Error {
    Error::NotEncoded { reason: error.to_string() }
}
