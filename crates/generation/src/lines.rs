//! The sequences of a step, and the words about them on the device.

use tensor::ops::choose::DRAW_ROWS;

use crate::options::GeneratorOptions;
use worker::{Result, WorkerError};

/// A sequence whose next token is computed.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// Tokens so far, at least one, that the model sees.
    pub tokens: &'a [u32],
    /// Whether the tokens before the last have not been computed in steps before: they are computed at once.
    pub is_new: bool,
    /// For a slot's new text, all tokens that a penalty applies to.
    pub seen: Option<&'a [u32]>,
    /// Number of the draw.
    pub number: u32,
    /// Key of the draws.
    pub key: [u32; 2],
}

impl Line<'_> {
    /// A bit for each token of the text before the last one, which the device adds itself.
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

/// Refuses lines that the slots do not hold.
pub(crate) fn check(lines: &[Option<Line<'_>>], options: GeneratorOptions) -> Result<()> {
    let fits = |line: &Line<'_>| (1..=options.capacity).contains(&line.tokens.len());
    if lines.len() <= options.slots && lines.iter().flatten().all(fits) {
        return Ok(());
    }
    let GeneratorOptions { slots, capacity, .. } = options;
    Err(WorkerError::Refused(format!("a step takes at most {slots} sequences of 1 to {capacity} tokens")))
}

/// The state of a step: by row the last token, minus its position, the number of the draw, and the key. Rows
/// without a sequence have zeros: their token is computed at position 0, which the next sequence overwrites.
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
