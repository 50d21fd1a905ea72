//! The split into training and validation tokens.

use crate::Error;
use std::ops::Range;

/// The two parts of a sequence of tokens: the last part is held out for validation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// Token positions to train on.
    pub train: Range<u64>,
    /// Token positions to validate on.
    pub validation: Range<u64>,
}

impl Split {
    /// Holds out the last ⌊`total` · `validation_fraction`⌋ tokens.
    ///
    /// # Errors
    /// [`Error::BadFraction`] if the fraction is not inside (0, 1); [`Error::TooShort`] if either part has
    /// fewer than `context` + 1 tokens, one sequence of inputs with their targets.
    pub fn new(total: u64, validation_fraction: f64, context: usize) -> Result<Self, Error> {
        if !(validation_fraction > 0.0 && validation_fraction < 1.0) {
            return Err(Error::BadFraction { fraction: validation_fraction });
        }
        let held_out = ((total as f64 * validation_fraction) as u64).min(total);
        let border = total - held_out;
        let needed = (context as u64).saturating_add(1);
        for (split, tokens) in [("training", border), ("validation", held_out)] {
            if tokens < needed {
                return Err(Error::TooShort { split, tokens, total, context, needed });
            }
        }
        Ok(Self { train: 0..border, validation: border..total })
    }
}
