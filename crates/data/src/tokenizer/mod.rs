//! Conversion of text to token numbers and back.

mod beside;
mod described;
mod file;
mod gpt2;

use crate::Error;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

pub use file::FileTokenizer;

/// Tokens of the vocabulary of bytes.
const BYTES: usize = 256;

/// A tokenizer. Its token numbers are below [`Tokenizer::vocabulary`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Tokenizer {
    /// The unknown tokenizer of token shards, whose tokens have no text.
    None,
    /// Each byte is a token: a vocabulary of 256, for any file.
    Bytes,
    /// GPT-2's byte-level byte-pair encoding.
    Gpt2,
    /// A `tokenizer.json`.
    File(Arc<FileTokenizer>),
}

impl Tokenizer {
    /// The names of built-in tokenizers.
    pub const NAMES: &'static [&'static str] = &["none", "bytes", "gpt2"];

    /// Returns the tokenizer called `name` in a configuration: one of [`Tokenizer::NAMES`], or the path of a
    /// `tokenizer.json` or of its folder.
    ///
    /// # Errors
    /// [`Error::BadTokenizer`] names a file that is no tokenizer; one that is missing or unreadable.
    pub fn from_name(name: &str) -> Result<Self, Error> {
        match name {
            "none" => Ok(Self::None),
            "bytes" => Ok(Self::Bytes),
            "gpt2" => Ok(Self::Gpt2),
            path => FileTokenizer::load(Path::new(path)).map(Self::File),
        }
    }

    /// The tokenizer's name for [`Tokenizer::from_name`].
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::None => "none",
            Self::Bytes => "bytes",
            Self::Gpt2 => "gpt2",
            Self::File(file) => file.name(),
        }
    }

    /// Returns the tokenizer's identity, independent of its file's location: the name, or the SHA-256 of the
    /// file.
    #[must_use]
    pub fn identity(&self) -> String {
        match self {
            Self::File(file) => format!("sha256:{}", file.sha256()),
            _ => self.name().to_owned(),
        }
    }

    /// The tokenizer's `tokenizer.json`, as it was read or for a built-in one; `None` for an unknown one.
    #[must_use]
    pub fn json(&self) -> Option<Vec<u8>> {
        match self {
            Self::None => None,
            Self::Bytes => Some(described::bytes().to_string().into_bytes()),
            Self::Gpt2 => Some(described::gpt2().to_string().into_bytes()),
            Self::File(file) => Some(file.json().to_vec()),
        }
    }

    /// The text of a token, as a file of special tokens names it.
    #[must_use]
    pub fn spelling(&self, token: u32) -> Option<String> {
        match self {
            Self::None | Self::Bytes => None,
            Self::Gpt2 | Self::File(_) => Some(self.decode(&[token])),
        }
    }

    /// Number of tokens: one more than the largest token; 0 if it is not known.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Bytes => BYTES,
            Self::Gpt2 => gpt2::VOCABULARY,
            Self::File(file) => file.vocabulary(),
        }
    }

    /// The token that usually precedes a document, if any: NUL for bytes, `<|endoftext|>` for GPT-2.
    #[must_use]
    pub fn separator(&self) -> Option<u32> {
        match self {
            Self::None => None,
            Self::Bytes => Some(0),
            Self::Gpt2 => Some(gpt2::END_OF_TEXT),
            Self::File(file) => file.separator(),
        }
    }

    /// The token that ends a text that a model answers with, if any: of a file `eos_token` of the
    /// configuration beside it, or else as [`Tokenizer::separator`].
    #[must_use]
    pub fn end(&self) -> Option<u32> {
        match self {
            Self::File(file) => file.end(),
            _ => self.separator(),
        }
    }

    /// The token written as `text`.
    #[must_use]
    pub fn token(&self, text: &str) -> Option<u32> {
        match self {
            Self::None => None,
            Self::Bytes => <[u8; 1]>::try_from(text.as_bytes()).ok().map(|[byte]| u32::from(byte)),
            Self::Gpt2 => gpt2::token(text),
            Self::File(file) => file.token(text),
        }
    }

    /// Returns the tokens of a text; none for [`Tokenizer::None`]. A special token that is spelled out in the
    /// text is encoded as text.
    ///
    /// # Errors
    /// [`Error::NotEncoded`] for a text that the tokenizer refuses.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        match self {
            Self::None => Ok(Vec::new()),
            Self::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Self::Gpt2 => gpt2::encode(text),
            Self::File(file) => file.encode(text),
        }
    }

    /// Returns the tokens of a text that a model is to continue, as transformers encode it: with the tokens
    /// that the tokenizer puts around a text, and special tokens where the text spells them out.
    ///
    /// # Errors
    /// As for [`Tokenizer::encode`].
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, Error> {
        match self {
            Self::File(file) => file.encode_prompt(text),
            _ => Ok(self.encode_spans(text)?.into_iter().map(|(token, _)| token).collect()),
        }
    }

    /// Returns the tokens of a text in which special tokens may be spelled out, as in a chat template, and
    /// the bytes of the text that each stands for.
    ///
    /// # Errors
    /// As for [`Tokenizer::encode`].
    pub fn encode_spans(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>, Error> {
        match self {
            Self::None => Ok(Vec::new()),
            Self::Bytes => Ok(text.bytes().enumerate().map(|(at, byte)| (byte.into(), at..at + 1)).collect()),
            Self::Gpt2 => gpt2::encode_spans(text),
            Self::File(file) => file.encode_spans(text),
        }
    }

    /// Returns the text of some tokens, for printing: invalid UTF-8, and tokens beyond the vocabulary, become
    /// U+FFFD. [`Tokenizer::None`] returns their numbers.
    #[must_use]
    pub fn decode(&self, tokens: &[u32]) -> String {
        match self {
            Self::None => tokens.iter().map(|token| format!("<{token}>")).collect(),
            Self::Bytes => {
                // 0xFF occurs in no UTF-8 text.
                let bytes: Vec<u8> =
                    tokens.iter().map(|token| u8::try_from(*token).unwrap_or(0xFF)).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Self::Gpt2 => gpt2::decode(tokens),
            Self::File(file) => file.decode(tokens),
        }
    }

    /// Bytes of text of every token, 0 for special ones; `None` if tokens do not consist of bytes.
    #[must_use]
    pub fn byte_lengths(&self) -> Option<Vec<u32>> {
        match self {
            Self::None => None,
            Self::Bytes => Some(vec![1; BYTES]),
            Self::Gpt2 => Some(gpt2::byte_lengths()),
            Self::File(file) => file.byte_lengths(),
        }
    }

    /// Returns whether a text may be cut before a single space between two visible characters without
    /// changing its tokens, which holds for byte-level tokenizers that split a text at spaces first.
    #[must_use]
    pub fn splits_at_spaces(&self) -> bool {
        match self {
            Self::None => false,
            Self::Bytes | Self::Gpt2 => true,
            Self::File(file) => file.splits_at_spaces(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn decoding_replaces_invalid_text() {
        let table: [(Tokenizer, &[u32], &str); 6] = [
            (Tokenizer::Bytes, &[104, 105], "hi"),
            (Tokenizer::Bytes, &[0xC3, 0xA9], "é"),
            (Tokenizer::Bytes, &[104, 0xC3, 105], "h\u{FFFD}i"),
            (Tokenizer::Bytes, &[104, 256, u32::MAX], "h\u{FFFD}\u{FFFD}"),
            // Token 127 is the byte 0xC3.
            (Tokenizer::Gpt2, &[31373, 127, 31373, 50257], "hello\u{FFFD}hello\u{FFFD}"),
            (Tokenizer::None, &[1, 2], "<1><2>"),
        ];
        for (tokenizer, tokens, text) in table {
            assert_eq!(tokenizer.decode(tokens), text, "{tokens:?}");
        }
    }

    #[test]
    fn names_give_their_tokenizers_and_others_are_files() {
        for name in Tokenizer::NAMES {
            assert_eq!(Tokenizer::from_name(name).unwrap().name(), *name);
        }
        let refused = Tokenizer::from_name("gtp2").unwrap_err();
        assert_eq!(refused.to_string(), "there is no file gtp2");
    }

    /// Loads a tokenizer from a file with this text.
    fn loaded(text: &[u8]) -> Result<Tokenizer, Error> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokenizer.json");
        std::fs::write(&path, text).unwrap();
        Tokenizer::from_name(directory.path().to_str().unwrap())
    }

    #[test]
    fn files_that_are_no_tokenizer_are_refused_in_a_sentence() {
        for text in [
            r#"{"decoder":""#,
            r#"{"decoder":"}"#,
            "",
            "{",
            "[]",
            "{}",
            "null",
            r#"{"model":{"type":"BPE"}}"#,
            r#"{"version":"1.0","added_tokens":[],"model":{"type":"BPE","vocab":{},"merges":["a"]}}"#,
            r#"{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":-1},"unk_token":"b"}}"#,
        ] {
            let refused = loaded(text.as_bytes()).unwrap_err();
            assert!(matches!(refused, Error::BadTokenizer { .. }), "{text}: {refused}");
        }
    }

    /// Tokens of tiktoken's `get_encoding("gpt2")` in Python.
    #[test]
    fn gpt2_gives_the_tokens_of_tiktoken() {
        let table: [(&str, &[u32]); 4] = [
            ("hello world", &[31373, 995]),
            ("First Citizen:\nBefore we proceed", &[5962, 22307, 25, 198, 8421, 356, 5120]),
            ("a  b\n\n c", &[64, 220, 275, 628, 269]),
            ("<|endoftext|>", &[27, 91, 437, 1659, 5239, 91, 29]),
        ];
        for (text, tokens) in table {
            assert_eq!(Tokenizer::Gpt2.encode(text).unwrap(), tokens, "{text}");
            assert_eq!(Tokenizer::Gpt2.decode(tokens), text);
        }
        assert_eq!(Tokenizer::Gpt2.separator(), Tokenizer::Gpt2.token("<|endoftext|>"));
        assert_eq!(Tokenizer::Gpt2.byte_lengths().unwrap()[31373], 5);
    }

    /// The longest runs on which a regular expression might give up.
    #[test]
    fn gpt2_takes_any_text() {
        for character in [" ", "a", "é"] {
            let text = character.repeat(1_200_000);
            assert_eq!(
                Tokenizer::Gpt2.decode(&Tokenizer::Gpt2.encode(&text).unwrap()),
                text,
                "{character:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn decoding_inverts_encoding(text in "\\PC{0,60}") {
            for tokenizer in [Tokenizer::Bytes, Tokenizer::Gpt2] {
                let tokens = tokenizer.encode(&text).unwrap();
                let lengths = tokenizer.byte_lengths().unwrap();
                let bytes: usize = tokens.iter().map(|token| lengths[*token as usize] as usize).sum();
                prop_assert_eq!(bytes, text.len());
                prop_assert_eq!(tokenizer.decode(&tokens), text.as_str());
            }
        }

        #[test]
        fn a_damaged_file_never_panics(
            cut in 0_usize..4_000,
            replaced in 0_usize..4_000,
            byte in 0_u8..=255,
        ) {
            let mut text = Tokenizer::Bytes.json().unwrap();
            let (cut, replaced) = (cut % text.len(), replaced % text.len());
            prop_assert!(loaded(&text[..cut]).is_err());
            text[replaced] = byte;
            if let Ok(tokenizer) = loaded(&text) {
                // What loads also encodes.
                prop_assert!(tokenizer.encode("a é").is_ok());
            }
        }

        #[test]
        fn cutting_before_a_space_changes_no_token(left in "[a-z0-9 é!\n']{0,20}", right in "[a-z0-9 é!\n']{0,20}") {
            let (left, right) = (format!("{left}x"), format!(" y{right}"));
            let encode = |text: &str| Tokenizer::Gpt2.encode(text).unwrap();
            prop_assert_eq!([encode(&left), encode(&right)].concat(), encode(&format!("{left}{right}")));
        }
    }
}
