//! Attention masks besides the causal one.

use device::DType;

use super::geometry::Geometry;
use crate::ops::check;
use crate::ops::dropout::Mask;
use crate::{Result, Tensor};

/// Attention masks besides the causal one and the window.
#[derive(Clone, Copy, Debug, Default)]
pub struct Masks<'a> {
    /// The position in its sequence at which the document of each token begins: `[batch, time]` u32, at most
    /// the token's own and never decreasing along a sequence. A position sees no position before it. `None`:
    /// 0.
    pub documents: Option<&'a Tensor>,
    /// Dropout of the weights after the softmax.
    pub dropout: Option<Mask>,
}

impl Masks<'_> {
    /// Returns whether no mask is set.
    pub(super) fn is_empty(&self) -> bool {
        self.documents.is_none() && self.dropout.is_none()
    }

    /// Refuses documents of a wrong shape or type.
    pub(super) fn check(&self, operator: &'static str, geometry: Geometry) -> Result<()> {
        let Some(documents) = self.documents else { return Ok(()) };
        check::dtype(operator, "documents", documents, DType::U32)?;
        check::shape(operator, "documents", documents, [geometry.batch, geometry.time])
    }
}
