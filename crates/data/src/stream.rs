//! Divides one sequence of tokens into windows, in a training order.

use crate::Error;
use crate::order::{OrderKind, Position, Sequential, Shuffled, validation_start};
use crate::packing::{Packing, PackingFigures};
use crate::slice::Slice;
use crate::token_options::{Documents, TokenOptions};

/// A contiguous run of tokens: the inputs of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenRun {
    /// Position of its first token in the corpus.
    pub(crate) start: u64,
    /// Number of tokens, at most the context.
    pub(crate) tokens: usize,
}

/// The training sequences of a slice, in order.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    slice: Slice,
    context: usize,
    order: Order,
}

#[derive(Clone, Debug)]
enum Order {
    Shuffled(Shuffled),
    Sequential(Sequential),
    Packed(Packing),
}

impl Stream {
    /// Divides `slice` into sequences.
    ///
    /// # Errors
    /// No shard has a whole micro-batch, or packing cannot read the data.
    pub(crate) fn new(slice: &Slice, options: &TokenOptions) -> Result<Self, Error> {
        let TokenOptions { context, micro_batch, seed, order, documents, .. } = *options;
        let order = match (order, documents) {
            (_, Some(Documents { separator, packs: true, .. })) => {
                Order::Packed(Packing::new(seed, slice, separator, context)?)
            }
            (OrderKind::Shuffled, _) => Order::Shuffled(Shuffled::new(seed, slice.tokens(), context as u64)),
            (OrderKind::Sequential, _) => {
                let order = Sequential::new(&slice.shards(), context as u64, micro_batch as u64);
                let needed = context.saturating_mul(micro_batch).saturating_add(1);
                Order::Sequential(order.ok_or(Error::NoMicroBatch { needed })?)
            }
        };
        Ok(Self { slice: slice.clone(), context, order })
    }

    pub(crate) fn sequences(&self) -> u64 {
        match &self.order {
            Order::Shuffled(order) => order.windows(),
            Order::Sequential(order) => order.windows(),
            Order::Packed(packing) => packing.len(),
        }
    }

    pub(crate) fn packing(&self) -> Option<PackingFigures> {
        match &self.order {
            Order::Packed(packing) => Some(packing.figures),
            Order::Shuffled(_) | Order::Sequential(_) => None,
        }
    }

    /// Returns the position of a training sequence, counted over all epochs, and its tokens.
    pub(crate) fn training(&self, sequence: u128) -> (Position, TokenRun) {
        let whole = |position: Position| (position, TokenRun { start: position.start, tokens: self.context });
        match &self.order {
            Order::Shuffled(order) => {
                let position = order.position(sequence);
                whole(Position { start: self.slice.range.start + position.start, ..position })
            }
            Order::Sequential(order) => whole(order.position(sequence)),
            Order::Packed(packing) => {
                let (position, pack) = packing.position(sequence);
                (position, TokenRun { start: pack.start, tokens: pack.tokens as usize })
            }
        }
    }

    /// Returns the number of non-overlapping sequences in a validation of the whole slice.
    pub(crate) fn validation_sequences(&self) -> u64 {
        match &self.order {
            Order::Shuffled(order) => order.windows(),
            Order::Sequential(_) => ((self.slice.tokens() - 1) / self.context as u64).max(1),
            Order::Packed(packing) => packing.len(),
        }
    }

    /// Returns the tokens of validation sequence `row` of `rows`, the same for every seed. Sequences are
    /// spread evenly over the slice; in sequential order they are consecutive from its start, as in llm.c.
    pub(crate) fn validation(&self, row: u64, rows: u64) -> TokenRun {
        let tokens = self.slice.tokens();
        let context = self.context as u64;
        let within = match &self.order {
            Order::Shuffled(_) => validation_start(row, rows, tokens, context),
            // From the first again if there are more sequences than the slice has.
            Order::Sequential(_) => row % self.validation_sequences() * context,
            Order::Packed(packing) => {
                let pack = packing.pack(validation_start(row, rows, packing.len() + 1, 1));
                return TokenRun { start: pack.start, tokens: pack.tokens as usize };
            }
        };
        TokenRun { start: self.slice.range.start + within, tokens: self.context }
    }
}
