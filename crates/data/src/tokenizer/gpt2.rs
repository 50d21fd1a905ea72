//! GPT-2's tokenizer. Its table is part of the program.

use crate::Error;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tiktoken_rs::{CoreBPE, r50k_base_singleton};

pub(super) const VOCABULARY: usize = 50_257;
/// Id of `<|endoftext|>`, the last token.
pub(super) const END_OF_TEXT: u32 = 50_256;
pub(super) const SEPARATOR: &str = "<|endoftext|>";

fn table() -> &'static CoreBPE {
    r50k_base_singleton()
}

pub(super) fn encode(text: &str) -> Result<Vec<u32>, Error> {
    // The library panics if its regular expression gives up.
    let encoded = catch_unwind(AssertUnwindSafe(|| table().encode_ordinary(text)));
    encoded.map_err(|_| Error::NotEncoded { reason: "its regular expression reached its limit".to_owned() })
}

/// Encodes a text in which `<|endoftext|>` may be spelled out, with the byte range of each token.
pub(super) fn encode_spans(text: &str) -> Result<Vec<(u32, Range<usize>)>, Error> {
    let mut spans: Vec<(u32, Range<usize>)> = Vec::new();
    for (index, part) in text.split(SEPARATOR).enumerate() {
        let mut add = |token: u32, bytes: usize| {
            let start = spans.last().map_or(0, |(_, span)| span.end);
            spans.push((token, start..start + bytes));
        };
        if index > 0 {
            add(END_OF_TEXT, SEPARATOR.len());
        }
        for token in encode(part)? {
            add(token, bytes_of(token).len());
        }
    }
    Ok(spans)
}

pub(super) fn token(text: &str) -> Option<u32> {
    match (text, encode(text).ok()?.as_slice()) {
        (SEPARATOR, _) => Some(END_OF_TEXT),
        (_, [token]) => Some(*token),
        _ => None,
    }
}

pub(super) fn byte_lengths() -> Vec<u32> {
    (0..END_OF_TEXT).map(|token| bytes_of(token).len() as u32).chain([0]).collect()
}

/// Returns the bytes of a token; empty for an unknown id.
pub(super) fn bytes_of(token: u32) -> Vec<u8> {
    table().decode_bytes(&[token]).unwrap_or_default()
}
