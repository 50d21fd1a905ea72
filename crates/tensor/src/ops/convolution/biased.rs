//! The bias of a convolution, and the activation or residual after it.

use crate::Tensor;
use crate::ops::linear::Ending;

/// A bias `[out]`, of the type of the other operands, and the operations that follow it.
#[derive(Clone, Copy, Debug)]
pub(in crate::ops) struct Biased<'a> {
    pub(in crate::ops) bias: &'a Tensor,
    pub(in crate::ops) ending: Ending<'a>,
}
