//! Attention masks besides the causal one.

use device::DType;

use super::geometry::Geometry;
use super::heads::Heads;
use crate::ops::check;
use crate::ops::dropout::Mask;
use crate::{Result, Tensor};

/// Attention masks besides the causal one and the window.
#[derive(Clone, Copy, Debug, Default)]
pub struct Masks<'a> {
    /// Start of each token's document, as a position in its sequence: `[batch, time]` u32, at most the
    /// token's own position and never decreasing along a sequence. A token sees nothing before it. `None`:
    /// all 0. For queries that are part of a sequence ([`Qkv::Piece`](super::Qkv::Piece)), minus the position
    /// of the first query, modulo 2³².
    pub documents: Option<&'a Tensor>,
    /// Dropout of the weights after the softmax.
    pub dropout: Option<Mask>,
    /// Sinks, as in gpt-oss: a score per query head that takes weight from the keys and has no value,
    /// `[heads.query]`, of the operands' type. Used by the forward pass; the log-sum-exps include them.
    pub sinks: Option<&'a Tensor>,
}

impl Masks<'_> {
    /// Refuses documents and sinks of a wrong shape or type.
    pub(super) fn check(&self, operator: &'static str, geometry: Geometry) -> Result<()> {
        if let Some(sinks) = self.sinks {
            check_sinks(operator, sinks, geometry.dtype, geometry.heads)?;
        }
        let Some(documents) = self.documents else { return Ok(()) };
        check::dtype(operator, "documents", documents, DType::U32)?;
        check::shape(operator, "documents", documents, [geometry.batch, geometry.time])
    }
}

/// Refuses sinks of a wrong shape or type.
pub(in crate::ops) fn check_sinks(
    operator: &'static str,
    sinks: &Tensor,
    dtype: DType,
    heads: Heads,
) -> Result<()> {
    check::dtype(operator, "sinks", sinks, dtype)?;
    check::shape(operator, "sinks", sinks, [heads.query])
}
