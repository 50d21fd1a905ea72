//! The order of training: from a sequence's number to where in the text it starts.

use crate::permutation::Permutation;
use philox::{key_of_name, philox4x32};

/// The counter word that the epoch's offset is drawn with; the permutation's rounds count from 0.
const OFFSET: u32 = u32::MAX;

/// In which order the windows of a text are trained on, for ever, as a pure function.
///
/// A window is `context` + 1 tokens: the inputs, and the same shifted by one as targets. Each epoch cuts
/// the text into windows from a start offset of its own, each window beginning with the last token of the
/// one before, and takes all of them in a permuted order of its own. Within an epoch no token is a target
/// twice. An epoch leaves out at most 2·`context` tokens, others in each epoch.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    key: [u32; 2],
    context: u64,
    windows: u64,
    /// Tokens that an epoch leaves out: how far its start may be shifted.
    slack: u64,
}

/// Where a sequence stands in training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// How often all windows have been trained on before, from 0.
    pub epoch: u64,
    /// Which sequence of this epoch it is, from 0.
    pub index: u64,
    /// The position of its first token in the training split; it ends `context` tokens later, included.
    pub start: u64,
}

impl Order {
    /// The order of windows over `tokens` tokens. Without even one window (fewer than `context` + 1 tokens, a
    /// context of 0) every position is 0.
    #[must_use]
    pub fn new(seed: u64, tokens: u64, context: u64) -> Self {
        let context = context.max(1);
        // One window fewer than would fit, if there are several, so that the start has room to move.
        let windows = (tokens.saturating_sub(context) / context).max(1);
        let slack = tokens.saturating_sub(1).saturating_sub(windows.saturating_mul(context));
        Self { key: key_of_name(seed, "data.order"), context, windows, slack }
    }

    /// Windows in an epoch.
    #[must_use]
    pub fn windows(&self) -> u64 {
        self.windows
    }

    /// Where sequence `sequence` of the whole training stands, counted from 0 over all epochs.
    #[must_use]
    pub fn position(&self, sequence: u128) -> Position {
        let windows = u128::from(self.windows);
        // Beyond 2⁶⁴ epochs they would come again.
        let epoch = (sequence / windows) as u64;
        let index = (sequence % windows) as u64;
        let window = Permutation::new(self.windows, self.key, epoch).at(index);
        Position { epoch, index, start: self.offset(epoch) + window * self.context }
    }

    /// Where the first window of an epoch starts: uniform over what the windows leave free.
    fn offset(&self, epoch: u64) -> u64 {
        let words = philox4x32(self.key, [0, OFFSET, epoch as u32, (epoch >> 32) as u32]);
        let random = u64::from(words[0]) | u64::from(words[1]) << 32;
        // The high word of the product scales 64 random bits to the range.
        ((u128::from(random) * (u128::from(self.slack) + 1)) >> 64) as u64
    }
}

/// Where sequence `index` of `count` validation sequences starts in a split of `tokens` tokens: spread evenly
/// from the split's first token to its last, the same for every seed.
pub(crate) fn validation_start(index: u64, count: u64, tokens: u64, context: u64) -> u64 {
    let last = u128::from(tokens.saturating_sub(context).saturating_sub(1));
    let steps = u128::from(count.saturating_sub(1).max(1));
    (u128::from(index) * last / steps) as u64
}
