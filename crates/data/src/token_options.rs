//! Options for cutting tokens into micro-batches.

use crate::order::OrderKind;

/// The target of a token that does not count in the loss.
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
    /// Validation micro-batches, spread over what is held out; more than fit once overlap.
    pub validation_micro_batches: u64,
    /// Number of tokens that exist; all that are read are below.
    pub vocabulary: usize,
    /// How documents are treated; `None`: a corpus is one text.
    pub documents: Option<Documents>,
    /// The token that does not count in the loss as a target.
    pub ignored: Option<u32>,
}

/// How documents are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Documents {
    /// The token that a document begins with.
    pub separator: u32,
    /// Whether sequences are filled with whole documents.
    pub packs: bool,
    /// Whether micro-batches state where documents begin.
    pub masks: bool,
}
