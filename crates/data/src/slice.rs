//! Ranges of corpora for training and validation.

use crate::{Corpus, Error};
use std::ops::Range;
use std::sync::Arc;

/// A range of a corpus.
#[derive(Clone, Debug)]
pub struct Slice {
    /// The corpus.
    pub corpus: Arc<Corpus>,
    /// Token positions of the range in the corpus.
    pub range: Range<u64>,
}

impl Slice {
    /// Returns the range of a whole corpus.
    #[must_use]
    pub fn all(corpus: Arc<Corpus>) -> Self {
        let range = 0..corpus.len();
        Self { corpus, range }
    }

    /// Returns the number of tokens in the range.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Returns the positions of each file within the range.
    pub(crate) fn shards(&self) -> Vec<Range<u64>> {
        let starts: Vec<u64> = self.corpus.starts().collect();
        let ends = starts.iter().skip(1).copied().chain([self.corpus.len()]);
        let within = |position: u64| position.clamp(self.range.start, self.range.end);
        starts.iter().zip(ends).map(|(start, end)| within(*start)..within(end)).collect()
    }
}

/// Training and validation tokens.
#[derive(Clone, Debug)]
pub struct Split {
    /// The training tokens.
    pub training: Slice,
    /// The validation tokens.
    pub validation: Slice,
}

impl Split {
    /// Holds out the last ⌊tokens · `fraction`⌋ tokens of a corpus.
    ///
    /// # Errors
    /// [`Error::BadFraction`] if the fraction is not inside (0, 1).
    pub fn at_end(corpus: Arc<Corpus>, fraction: f64) -> Result<Self, Error> {
        if !(fraction > 0.0 && fraction < 1.0) {
            return Err(Error::BadFraction { fraction });
        }
        let total = corpus.len();
        let border = total - ((total as f64 * fraction) as u64).min(total);
        let training = Slice { corpus: Arc::clone(&corpus), range: 0..border };
        Ok(Self { training, validation: Slice { corpus, range: border..total } })
    }

    /// Checks that both splits have at least `context` + 1 tokens.
    ///
    /// # Errors
    /// [`Error::TooShort`] names the split.
    pub(crate) fn check(&self, context: usize) -> Result<(), Error> {
        let needed = (context as u64).saturating_add(1);
        for (split, part) in [("training", &self.training), ("validation", &self.validation)] {
            let tokens = part.tokens();
            let total = part.corpus.len();
            if tokens < needed {
                return Err(Error::TooShort { split, tokens, total, context, needed });
            }
        }
        Ok(())
    }
}
