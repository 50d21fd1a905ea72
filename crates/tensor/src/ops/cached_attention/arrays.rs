//! The arrays of a call beside queries, keys and values.

use crate::Tensor;

/// Arrays that the next tokens of sequences attend with.
#[derive(Clone, Copy)]
pub(super) struct Arrays<'a> {
    /// Minus the position of every row.
    pub(super) documents: &'a Tensor,
    /// The table of cosines and sines, if queries and keys rotate.
    pub(super) angles: Option<&'a Tensor>,
    /// A score without a value for every query head.
    pub(super) sinks: Option<&'a Tensor>,
}
