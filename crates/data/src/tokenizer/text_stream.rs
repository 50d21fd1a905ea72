//! Decodes text incrementally, token by token.

use super::Tokenizer;
use super::token_bytes::Start;

/// Decodes text incrementally, in whole characters.
///
/// The returned texts, concatenated, equal [`Tokenizer::decode`] of all tokens.
#[derive(Clone, Debug)]
pub struct TextStream {
    /// Bytes of an incomplete character.
    pending: Vec<u8>,
    /// Whether no token with text has been added yet.
    is_start: bool,
    /// Number of bytes that the decoder may still remove from the start.
    to_strip: usize,
    library: LibraryText,
}

impl TextStream {
    /// Starts a text, or the continuation of a text with the tokens `before`, which keeps its leading space.
    #[must_use]
    pub fn new(tokenizer: &Tokenizer, before: &[u32]) -> Self {
        let is_start = before.iter().all(|token| tokenizer.is_special(*token));
        let to_strip = match tokenizer.start_of_text() {
            Start::Strips(_, count) if is_start => count,
            _ => 0,
        };
        let before = if is_start { &[] } else { before };
        Self { pending: Vec::new(), is_start, to_strip, library: LibraryText::new(before) }
    }

    /// Adds a token, and returns the text that is now complete.
    pub fn push(&mut self, tokenizer: &Tokenizer, token: u32) -> String {
        let Some(bytes) = tokenizer.token_bytes(token) else {
            return self.library.push(tokenizer, token);
        };
        let mut bytes = &*bytes;
        let without_spaces: Vec<u8>;
        match tokenizer.start_of_text() {
            Start::Strips(byte, _) => {
                while self.to_strip > 0 && bytes.first() == Some(&byte) {
                    (bytes, self.to_strip) = (&bytes[1..], self.to_strip - 1);
                }
                self.to_strip = if bytes.is_empty() { self.to_strip } else { 0 };
            }
            Start::WithoutSpaces if self.is_start => {
                without_spaces = bytes.iter().copied().filter(|byte| *byte != b' ').collect();
                bytes = &without_spaces;
            }
            _ => {}
        }
        self.is_start = false;
        self.pending.extend(bytes);
        self.take_complete()
    }

    /// Returns the remaining text after the last token.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> String {
        let rest = std::mem::take(&mut self.pending);
        String::from_utf8_lossy(&rest).into_owned() + &self.library.finish(tokenizer)
    }

    /// Removes the complete characters from the pending bytes and returns them. Invalid bytes become U+FFFD.
    fn take_complete(&mut self) -> String {
        let mut text = String::new();
        let mut rest = &*self.pending;
        loop {
            let error = match str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => error,
            };
            let (valid, invalid) = rest.split_at(error.valid_up_to());
            text.push_str(str::from_utf8(valid).unwrap_or_default());
            rest = invalid;
            let Some(length) = error.error_len() else { break };
            text.push(char::REPLACEMENT_CHARACTER);
            rest = &rest[length..];
        }
        self.pending = rest.to_vec();
        text
    }
}

/// Incremental decoder for tokens whose texts depend on each other: compares the texts before and after each
/// token.
#[derive(Clone, Debug)]
struct LibraryText {
    /// The last tokens. The text of the first `shown` has already been returned or belongs to the text
    /// before.
    tokens: Vec<u32>,
    shown: usize,
}

/// Number of preceding tokens on which the text of a continuation may depend.
const NEIGHBOURS: usize = 16;

impl LibraryText {
    fn new(before: &[u32]) -> Self {
        let tokens = before[before.len().saturating_sub(NEIGHBOURS)..].to_vec();
        Self { shown: tokens.len(), tokens }
    }

    fn push(&mut self, tokenizer: &Tokenizer, token: u32) -> String {
        self.tokens.push(token);
        let text = self.added(tokenizer);
        if text.is_empty() || text.ends_with(char::REPLACEMENT_CHARACTER) {
            return String::new();
        }
        self.tokens.drain(..self.tokens.len().saturating_sub(NEIGHBOURS));
        self.shown = self.tokens.len();
        text
    }

    fn finish(&mut self, tokenizer: &Tokenizer) -> String {
        let text = if self.shown < self.tokens.len() { self.added(tokenizer) } else { String::new() };
        self.shown = self.tokens.len();
        text
    }

    /// Returns the text that the tokens add to that of the first `shown`.
    fn added(&self, tokenizer: &Tokenizer) -> String {
        let before = tokenizer.decode(&self.tokens[..self.shown]);
        let all = tokenizer.decode(&self.tokens);
        let mut start = before.len().min(all.len());
        while !all.is_char_boundary(start) {
            start -= 1;
        }
        all[start..].to_owned()
    }
}
