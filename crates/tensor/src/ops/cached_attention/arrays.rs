//! Optional operands of a cached-attention call besides queries, keys and values.

use crate::Tensor;

/// Optional operands of a call besides queries, keys and values.
#[derive(Clone, Copy)]
pub(super) struct Arrays<'a> {
    /// Minus the position of each row's token, modulo 2³².
    pub(super) documents: &'a Tensor,
    /// Cosines and sines of the rotary embedding; `None`: no rotation.
    pub(super) angles: Option<&'a Tensor>,
    /// Attention sinks: a score without a value for every query head.
    pub(super) sinks: Option<&'a Tensor>,
}
