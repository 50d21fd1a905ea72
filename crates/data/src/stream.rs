//! One sequence of tokens that is cut into windows, in an order.

use crate::order::{OrderKind, Position, Sequential, Shuffled, validation_start};
use crate::{Corpus, Error};
use std::ops::Range;
use std::sync::Arc;

/// A range of a corpus.
#[derive(Clone, Debug)]
pub struct Slice {
    /// The tokens.
    pub corpus: Arc<Corpus>,
    /// Positions of the range.
    pub range: Range<u64>,
}

impl Slice {
    /// All of a corpus.
    #[must_use]
    pub fn all(corpus: Arc<Corpus>) -> Self {
        let range = 0..corpus.len();
        Self { corpus, range }
    }

    /// Tokens in the range.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The positions of each file in the range.
    fn shards(&self) -> Vec<Range<u64>> {
        let starts: Vec<u64> = self.corpus.starts().collect();
        let ends = starts.iter().skip(1).copied().chain([self.corpus.len()]);
        let within = |position: u64| position.clamp(self.range.start, self.range.end);
        starts.iter().zip(ends).map(|(start, end)| within(*start)..within(end)).collect()
    }
}

/// What tokens are trained on and validated on.
#[derive(Clone, Debug)]
pub struct Split {
    /// Trained on.
    pub training: Slice,
    /// Held out.
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

    /// Checks that both parts have a sequence of `context` tokens with its targets.
    ///
    /// # Errors
    /// [`Error::TooShort`] names the part.
    pub(crate) fn check(&self, context: usize) -> Result<(), Error> {
        let needed = (context as u64).saturating_add(1);
        for (split, part) in [("training", &self.training), ("validation", &self.validation)] {
            let (tokens, total) = (part.tokens(), part.corpus.len());
            if tokens < needed {
                return Err(Error::TooShort { split, tokens, total, context, needed });
            }
        }
        Ok(())
    }
}

/// The order of a slice's windows.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    Shuffled(Shuffled),
    Sequential(Sequential),
}

impl Order {
    /// The order of training on `slice`. Errors: no shard has a whole micro-batch.
    pub(crate) fn of(
        kind: OrderKind,
        slice: &Slice,
        seed: u64,
        context: usize,
        micro_batch: usize,
    ) -> Result<Self, Error> {
        match kind {
            OrderKind::Shuffled => Ok(Self::Shuffled(Shuffled::new(seed, slice.tokens(), context as u64))),
            OrderKind::Sequential => {
                let order = Sequential::new(&slice.shards(), context as u64, micro_batch as u64);
                let needed = context.saturating_mul(micro_batch).saturating_add(1);
                order.map(Self::Sequential).ok_or(Error::NoMicroBatch { needed })
            }
        }
    }

    pub(crate) fn windows(&self) -> u64 {
        match self {
            Self::Shuffled(order) => order.windows(),
            Self::Sequential(order) => order.windows(),
        }
    }

    /// Place of a sequence in `slice`.
    pub(crate) fn position(&self, slice: &Slice, sequence: u128) -> Position {
        match self {
            Self::Shuffled(order) => {
                let position = order.position(sequence);
                Position { start: slice.range.start + position.start, ..position }
            }
            Self::Sequential(order) => order.position(sequence),
        }
    }
}

/// Start of validation sequence `row` of `rows` in `slice`: spread evenly, or one after the other from the
/// first as llm.c reads them.
pub(crate) fn validated_at(kind: OrderKind, slice: &Slice, row: u64, rows: u64, context: usize) -> u64 {
    let (tokens, context) = (slice.tokens(), context as u64);
    let within = match kind {
        OrderKind::Shuffled => validation_start(row, rows, tokens, context),
        // From the first again where there are more sequences than the slice has.
        OrderKind::Sequential => row % ((tokens - 1) / context).max(1) * context,
    };
    slice.range.start + within
}
