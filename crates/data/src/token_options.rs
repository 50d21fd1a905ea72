//! Options for cutting tokens into micro-batches.

use crate::order::OrderKind;

/// Target of a token that does not count in the loss.
pub const IGNORED: u32 = u32::MAX;

/// Options for cutting tokens into micro-batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenOptions {
    /// Input tokens in a sequence.
    pub context: usize,
    /// Sequences in a micro-batch.
    pub micro_batch: usize,
    /// Seed of the order of training.
    pub seed: u64,
    /// The order of training.
    pub order: OrderKind,
    /// Validation micro-batches, spread over the validation tokens; they overlap if there are more than fit.
    pub validation_micro_batches: u64,
    /// The vocabulary size; all tokens are below it.
    pub vocabulary: usize,
    /// The treatment of documents; `None`: a corpus is one text.
    pub documents: Option<Documents>,
    /// The token that does not count in the loss as a target.
    pub ignored: Option<u32>,
}

/// The treatment of documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Documents {
    /// The token with which a document begins.
    pub separator: u32,
    /// Whether sequences are filled with whole documents.
    pub packs: bool,
    /// Whether micro-batches contain the starts of documents.
    pub masks: bool,
    /// Whether micro-batches say which inputs are tokens.
    pub marks_tokens: bool,
}
