//! The sequences of a step, and their encoding for the device.

use tensor::ops::choose::DRAW_ROWS;

use crate::options::GeneratorOptions;
use worker::{Result, WorkerError};

/// A sequence for which to compute the next token.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// The tokens so far, at least one.
    pub tokens: &'a [u32],
    /// Whether the tokens before the last must be computed first, because earlier steps did not.
    pub is_new: bool,
    /// Tokens to which a repetition penalty applies, for a text that is new in its slot.
    pub seen: Option<&'a [u32]>,
    /// Index of the random draw.
    pub number: u32,
    /// Key of the random draws.
    pub key: [u32; 2],
}

impl Line<'_> {
    /// Returns the bit set of the text's tokens before the last. The device adds the last one itself.
    pub(crate) fn seen_bits(&self, words: usize) -> Vec<u32> {
        let mut bits = vec![0; words];
        for token in self.seen.into_iter().flatten() {
            if let Some(word) = bits.get_mut(*token as usize / 32) {
                *word |= 1 << (token % 32);
            }
        }
        bits
    }
}

/// Checks that the lines fit the slots and their capacity.
pub(crate) fn check(lines: &[Option<Line<'_>>], options: GeneratorOptions) -> Result<()> {
    let fits = |line: &Line<'_>| (1..=options.capacity).contains(&line.tokens.len());
    if lines.len() <= options.slots && lines.iter().flatten().all(fits) {
        return Ok(());
    }
    let GeneratorOptions { slots, capacity, .. } = options;
    Err(WorkerError::Refused(format!("a step takes at most {slots} sequences of 1 to {capacity} tokens")))
}

/// Encodes the input of a step: for each row its last token, minus its position, the index of the draw, and
/// the key. Empty rows are zero: their token is computed at position 0, which the next sequence overwrites.
pub(crate) fn state(lines: &[Option<Line<'_>>], rows: usize) -> Vec<u32> {
    let mut words = vec![0; (2 + DRAW_ROWS) * rows];
    for (row, line) in lines.iter().enumerate() {
        let Some(Line { tokens, number, key: [low, high], .. }) = *line else { continue };
        let last = tokens.last().copied().unwrap_or_default();
        let position = tokens.len().saturating_sub(1) as u32;
        for (index, word) in [last, position.wrapping_neg(), number, low, high].into_iter().enumerate() {
            words[index * rows + row] = word;
        }
    }
    words
}
