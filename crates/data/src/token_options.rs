//! Options for cutting tokens into micro-batches.

use crate::order::OrderKind;

/// Target that the loss ignores.
pub const IGNORED: u32 = u32::MAX;

/// Options for cutting tokens into micro-batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenOptions {
    /// Number of input tokens per sequence.
    pub context: usize,
    /// Number of sequences per micro-batch.
    pub micro_batch: usize,
    /// Seed for the order of training.
    pub seed: u64,
    /// The order of training.
    pub order: OrderKind,
    /// Number of validation micro-batches, spread over the validation tokens. They overlap if there are more
    /// than fit.
    pub validation_micro_batches: u64,
    /// The vocabulary size; all token ids must be below it.
    pub vocabulary: usize,
    /// How documents are handled; `None` treats a corpus as one text.
    pub documents: Option<Documents>,
    /// A token that the loss ignores if it is the target.
    pub ignored: Option<u32>,
}

/// How documents are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Documents {
    /// The token that begins a document.
    pub separator: u32,
    /// Whether sequences are packed with whole documents.
    pub packs: bool,
    /// Whether micro-batches include the starts of documents, to mask attention.
    pub masks: bool,
    /// Whether micro-batches mark which inputs are tokens.
    pub marks_tokens: bool,
}
