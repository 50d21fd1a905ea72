//! Converts text to token ids and back.

mod beside;
mod class_defaults;
mod cuts;
mod damage;
mod described;
mod description;
mod file;
mod folder;
mod gpt2;
mod keys;
mod special_tokens;
mod text_stream;
mod token_bytes;

use crate::Error;
use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, LazyLock};

pub use file::FileTokenizer;
pub(crate) use keys::{GENERATION_CONFIG, SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG};
pub use special_tokens::SpecialTokens;
pub use text_stream::TextStream;

use token_bytes::Start;

/// Vocabulary size of the byte tokenizer.
const BYTES: usize = 256;

/// A tokenizer. Its token ids are below [`Tokenizer::vocabulary`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Tokenizer {
    /// Unknown tokenizer of token shards that are never converted to text.
    None,
    /// Each byte is a token: a vocabulary of 256, for any file.
    Bytes,
    /// GPT-2's byte-level byte-pair encoding.
    Gpt2,
    /// A `tokenizer.json`.
    File(Arc<FileTokenizer>),
}

impl Tokenizer {
    /// Names of the built-in tokenizers.
    pub const NAMES: &'static [&'static str] = &["none", "bytes", "gpt2"];

    /// Returns the tokenizer called `name` in a configuration: one of [`Tokenizer::NAMES`], or the path of a
    /// `tokenizer.json` or its folder.
    ///
    /// # Errors
    /// A file is missing or unreadable; [`Error::BadTokenizer`] names a file that is not a tokenizer,
    /// [`Error::BadTokenizerFile`] an invalid file beside it.
    pub fn from_name(name: &str) -> Result<Self, Error> {
        match name {
            "none" => Ok(Self::None),
            "bytes" => Ok(Self::Bytes),
            "gpt2" => Ok(Self::Gpt2),
            path => FileTokenizer::load(Path::new(path)).map(Self::File),
        }
    }

    /// Returns the tokenizer's name for [`Tokenizer::from_name`].
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::None => "none",
            Self::Bytes => "bytes",
            Self::Gpt2 => "gpt2",
            Self::File(file) => file.name(),
        }
    }

    /// Returns the tokenizer's identity, independent of its location: the name if built-in, or else the
    /// SHA-256 of the file and of tokens added by files beside it.
    #[must_use]
    pub fn identity(&self) -> String {
        match self {
            Self::File(file) => format!("sha256:{}", file.identity()),
            _ => self.name().to_owned(),
        }
    }

    /// Returns the tokenizer's `tokenizer.json`, as read, or generated for a built-in one; `None` for
    /// [`Tokenizer::None`].
    #[must_use]
    pub fn json(&self) -> Option<Vec<u8>> {
        match self {
            Self::None => None,
            Self::Bytes => Some(described::bytes().to_string().into_bytes()),
            Self::Gpt2 => Some(described::gpt2().to_string().into_bytes()),
            Self::File(file) => Some(file.json().to_vec()),
        }
    }

    /// Returns the text of a token as written in a file of special tokens; `None` if it has none.
    #[must_use]
    pub fn spelling(&self, token: u32) -> Option<String> {
        match self {
            Self::None | Self::Bytes => None,
            Self::Gpt2 => Some(self.decode(&[token])),
            Self::File(file) => file.text_of(token),
        }
    }

    /// Refuses tokens beyond a model's `vocabulary`.
    ///
    /// # Errors
    /// A sentence about the first such token, with advice.
    pub fn check_tokens(&self, tokens: &[u32], vocabulary: usize) -> Result<(), String> {
        let Some(token) = tokens.iter().find(|token| **token as usize >= vocabulary) else { return Ok(()) };
        let known = (*token as usize) < self.vocabulary();
        let text = self.spelling(*token).filter(|_| known).map(|text| format!(" ({text:?})"));
        let advice = match known {
            true => ": model.resize_vocabulary = true adds rows to the embedding of model.from",
            false => "",
        };
        let text = text.unwrap_or_default();
        Err(format!("token {token}{text} is not among the {vocabulary} of the model{advice}"))
    }

    /// Returns the vocabulary size, one more than the largest token id; 0 if unknown.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Bytes => BYTES,
            Self::Gpt2 => gpt2::VOCABULARY,
            Self::File(file) => file.vocabulary(),
        }
    }

    /// Returns the special tokens, which also mark where texts begin and end.
    #[must_use]
    pub fn special_tokens(&self) -> &SpecialTokens {
        /// The byte tokenizer has no special token, but NUL occurs in no text.
        static BYTES: LazyLock<SpecialTokens> = LazyLock::new(|| SpecialTokens {
            separator: Some(0),
            prefix: Some(0),
            end: Some(0),
            ..SpecialTokens::default()
        });
        static GPT2: LazyLock<SpecialTokens> = LazyLock::new(|| SpecialTokens {
            named: ["bos_token", "eos_token", "unk_token"]
                .map(|name| (name.to_owned(), gpt2::SEPARATOR.to_owned()))
                .to_vec(),
            separator: Some(gpt2::END_OF_TEXT),
            prefix: Some(gpt2::END_OF_TEXT),
            end: Some(gpt2::END_OF_TEXT),
            ..SpecialTokens::default()
        });
        static NONE: LazyLock<SpecialTokens> = LazyLock::new(SpecialTokens::default);
        match self {
            Self::None => &NONE,
            Self::Bytes => &BYTES,
            Self::Gpt2 => &GPT2,
            Self::File(file) => file.special(),
        }
    }

    /// Returns the token that precedes a document: NUL for bytes, `<|endoftext|>` for GPT-2; `None` if there
    /// is none.
    #[must_use]
    pub fn separator(&self) -> Option<u32> {
        self.special_tokens().separator
    }

    /// Returns the token that ends a model's answer; `None` if there is none.
    #[must_use]
    pub fn end(&self) -> Option<u32> {
        self.special_tokens().end
    }

    /// Returns whether a token is special, that is, not part of the text.
    #[must_use]
    pub fn is_special(&self, token: u32) -> bool {
        match self {
            Self::None | Self::Bytes => false,
            Self::Gpt2 => token == gpt2::END_OF_TEXT,
            Self::File(file) => file.is_special(token),
        }
    }

    /// Returns the token whose text is `text`; `None` if there is none.
    #[must_use]
    pub fn token(&self, text: &str) -> Option<u32> {
        match self {
            Self::None => None,
            Self::Bytes => <[u8; 1]>::try_from(text.as_bytes()).ok().map(|[byte]| u32::from(byte)),
            Self::Gpt2 => gpt2::token(text),
            Self::File(file) => file.token(text),
        }
    }

    /// Encodes a text; empty for [`Tokenizer::None`]. Special tokens spelled out in the text are encoded as
    /// plain text.
    ///
    /// # Errors
    /// [`Error::NotEncoded`] if the tokenizer refuses the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        match self {
            Self::None => Ok(Vec::new()),
            Self::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Self::Gpt2 => gpt2::encode(text),
            Self::File(file) => file.encode(text),
        }
    }

    /// Encodes a text for a model to continue, as transformers does: with the tokens that the tokenizer puts
    /// around a text, and with special tokens that the text spells out.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, Error> {
        match self {
            Self::File(file) => file.encode_prompt(text),
            _ => Ok(self.encode_spans(text)?.into_iter().map(|(token, _)| token).collect()),
        }
    }

    /// Encodes a text in which special tokens may be spelled out, as chat templates do. Returns each token
    /// with its byte range in the text.
    pub fn encode_spans(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>, Error> {
        match self {
            Self::None => Ok(Vec::new()),
            Self::Bytes => Ok(text.bytes().enumerate().map(|(at, byte)| (byte.into(), at..at + 1)).collect()),
            Self::Gpt2 => gpt2::encode_spans(text),
            Self::File(file) => file.encode_spans(text),
        }
    }

    /// Decodes tokens to text for printing. Invalid UTF-8 and ids beyond the vocabulary become U+FFFD.
    /// [`Tokenizer::None`] prints the ids.
    #[must_use]
    pub fn decode(&self, tokens: &[u32]) -> String {
        match self {
            Self::File(file) if file.token_bytes().is_none() => file.decode_by_library(tokens),
            _ => {
                let mut stream = TextStream::new(self, &[]);
                let mut text: String = tokens.iter().map(|token| stream.push(self, *token)).collect();
                text += &stream.finish(self);
                text
            }
        }
    }

    /// Returns the bytes of a token's text; `None` if they depend on the tokens before it.
    fn token_bytes(&self, token: u32) -> Option<Cow<'_, [u8]>> {
        // It occurs in no UTF-8 text.
        const NO_TEXT: &[u8] = &[0xFF];
        Some(match self {
            Self::None => format!("<{token}>").into_bytes().into(),
            Self::Bytes => u8::try_from(token).map_or(NO_TEXT.into(), |byte| vec![byte].into()),
            Self::Gpt2 if token as usize >= gpt2::VOCABULARY => NO_TEXT.into(),
            Self::Gpt2 => gpt2::bytes_of(token).into(),
            Self::File(file) => file.token_bytes()?.get(token).unwrap_or(NO_TEXT).into(),
        })
    }

    /// Returns how the decoder changes the start of a text.
    fn start_of_text(&self) -> Start {
        match self {
            Self::File(file) => file.token_bytes().map_or(Start::Kept, token_bytes::TokenBytes::start),
            _ => Start::Kept,
        }
    }

    /// Returns the number of text bytes of every token, 0 for special ones; `None` if tokens do not consist
    /// of bytes.
    #[must_use]
    pub fn byte_lengths(&self) -> Option<Vec<u32>> {
        match self {
            Self::None => None,
            Self::Bytes => Some(vec![1; BYTES]),
            Self::Gpt2 => Some(gpt2::byte_lengths()),
            Self::File(file) => file.byte_lengths(),
        }
    }

    /// Returns whether a text can be cut before a single space between two visible characters without
    /// changing its tokens. True for byte-level tokenizers that first split at spaces.
    #[must_use]
    pub fn cuts_at_spaces(&self) -> bool {
        match self {
            Self::None => false,
            Self::Bytes | Self::Gpt2 => true,
            Self::File(file) => file.cuts_at_spaces(),
        }
    }
}

#[cfg(test)]
mod tests;
