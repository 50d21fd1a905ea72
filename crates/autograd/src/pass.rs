//! The micro-batch that a pass computes.

use tensor::Tensor;

/// Settings shared by all calls of one pass of one micro-batch, besides their operands. All stages of a
/// pipeline, and the second run of a recomputed segment, have the same.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    /// Number of the micro-batch over all steps and ranks, of which random numbers are functions.
    pub micro_batch: u64,
    /// The position in its sequence at which the document of each token begins, `[batch, time]` u32, never
    /// decreasing along a sequence. `None`: every sequence is one document.
    pub documents: Option<Tensor>,
}
