//! The order of training: maps each numbered sequence to its start among the tokens.

use crate::permutation::Permutation;
use philox::{key_of_name, philox4x32};
use std::ops::Range;

/// Counter word from which an epoch's offset is drawn. The permutation's rounds are counted from 0.
const OFFSET: u32 = u32::MAX;

system::names! {
    /// The available orders.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum OrderKind {
        /// Every epoch in a different random order.
        Shuffled = "shuffled",
        /// Every epoch from the first token to the last.
        Sequential = "sequential",
    }
}

/// The position of a sequence in training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Index of the sequence within the epoch, from 0.
    pub index: u64,
    /// Index, among the training tokens, of the window's first token; its last is `context` tokens later.
    pub start: u64,
}

/// A shuffled order of the windows of a text over all epochs, as a pure function.
///
/// A window has `context` + 1 tokens: the inputs, and the same shifted by one as targets. Each epoch divides
/// the text into windows from its own start offset and visits all of them in its own permuted order. Each
/// window begins with the last token of the previous one. Within an epoch no token is a target twice. An
/// epoch omits at most 2·`context` tokens, different ones in each epoch.
#[derive(Clone, Copy, Debug)]
pub struct Shuffled {
    key: [u32; 2],
    context: u64,
    windows: u64,
    /// Number of tokens that an epoch omits, which is also the largest shift of its start.
    slack: u64,
}

impl Shuffled {
    /// Returns the order of windows over `tokens` tokens. Without a whole window (fewer than `context` + 1
    /// tokens, or a context of 0) every position is 0.
    #[must_use]
    pub fn new(seed: u64, tokens: u64, context: u64) -> Self {
        let context = context.max(1);
        // One window fewer than would fit, if there are several, so that the start can be shifted.
        let windows = (tokens.saturating_sub(context) / context).max(1);
        let slack = tokens.saturating_sub(1).saturating_sub(windows.saturating_mul(context));
        Self { key: key_of_name(seed, "data.order"), context, windows, slack }
    }

    /// Returns the number of windows per epoch.
    #[must_use]
    pub fn windows(&self) -> u64 {
        self.windows
    }

    /// Returns the position of sequence `sequence`, counted from 0 over all epochs.
    #[must_use]
    pub fn position(&self, sequence: u128) -> Position {
        let windows = u128::from(self.windows);
        // After 2⁶⁴ epochs the orders repeat.
        let epoch = (sequence / windows) as u64;
        let index = (sequence % windows) as u64;
        let window = Permutation::new(self.windows, self.key, epoch).at(index);
        Position { epoch, index, start: self.offset(epoch) + window * self.context }
    }

    /// Returns the start of an epoch's first window, uniform over the tokens not covered by windows.
    fn offset(&self, epoch: u64) -> u64 {
        let words = philox4x32(self.key, [0, OFFSET, epoch as u32, (epoch >> 32) as u32]);
        let random = u64::from(words[0]) | u64::from(words[1]) << 32;
        // The high word of the product scales 64 random bits to the range.
        ((u128::from(random) * (u128::from(self.slack) + 1)) >> 64) as u64
    }
}

/// The order of llm.c and modded-nanogpt on one process: shard by shard, and in each shard micro-batch after
/// micro-batch of consecutive tokens.
///
/// A window begins with the last token of the previous one. Tokens at the end of a shard that do not fill a
/// micro-batch are omitted.
#[derive(Clone, Debug)]
pub struct Sequential {
    context: u64,
    micro_batch: u64,
    shards: Vec<ShardRun>,
    micro_batches: u64,
}

/// The micro-batches of one shard.
#[derive(Clone, Copy, Debug)]
struct ShardRun {
    /// Position of the shard's first token.
    start: u64,
    /// Number of micro-batches in an epoch before this shard's.
    before: u64,
}

impl Sequential {
    /// Returns the order over `shards`, which are ranges of token positions, in micro-batches of
    /// `micro_batch` sequences. `None` if no shard has a whole micro-batch of `micro_batch` · `context` + 1
    /// tokens.
    #[must_use]
    pub fn new(shards: &[Range<u64>], context: u64, micro_batch: u64) -> Option<Self> {
        let tokens = context.checked_mul(micro_batch).filter(|tokens| *tokens > 0)?;
        let mut order = Self { context, micro_batch, shards: Vec::new(), micro_batches: 0 };
        for shard in shards {
            let count = shard.end.saturating_sub(shard.start).saturating_sub(1) / tokens;
            if count > 0 {
                order.shards.push(ShardRun { start: shard.start, before: order.micro_batches });
                order.micro_batches += count;
            }
        }
        (order.micro_batches > 0).then_some(order)
    }

    /// Returns the number of windows per epoch.
    #[must_use]
    pub fn windows(&self) -> u64 {
        self.micro_batches * self.micro_batch
    }

    /// Returns the position of sequence `sequence`, counted from 0 over all epochs.
    #[must_use]
    pub fn position(&self, sequence: u128) -> Position {
        let windows = u128::from(self.windows());
        let epoch = (sequence / windows) as u64;
        let index = (sequence % windows) as u64;
        let shard = self.shards.partition_point(|run| run.before <= index / self.micro_batch);
        let run = self.shards[shard.saturating_sub(1)];
        Position { epoch, index, start: run.start + (index - run.before * self.micro_batch) * self.context }
    }
}

/// Returns the start of validation sequence `index` of `count` in a split of `tokens` tokens. The sequences
/// are spread evenly from the split's first token to its last, and are the same for every seed.
pub(crate) fn validation_start(index: u64, count: u64, tokens: u64, context: u64) -> u64 {
    let last = u128::from(tokens.saturating_sub(context).saturating_sub(1));
    let steps = u128::from(count.saturating_sub(1).max(1));
    (u128::from(index) * last / steps) as u64
}
