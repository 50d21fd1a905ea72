//! The values from which a layer's input is made.

use crate::ops::{Activation, check};
use crate::{Result, Tensor};

/// A function of a layer's input. It is computed in the pass that casts its result, which is
/// stored in FP8 only; it is rounded to the tensor's type first, as if it were stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Input {
    /// The tensor itself.
    #[default]
    Plain,
    /// An activation of each element.
    Activated(Activation),
    /// `activation(g) · u` for rows that hold the columns of g, then those of u.
    Gated(Activation),
}

impl Input {
    /// Number of columns of the layer's input for a tensor `x`.
    ///
    /// # Errors
    /// An odd number of columns of a gate.
    pub(super) fn columns(self, operator: &'static str, x: &Tensor) -> Result<usize> {
        let columns = x.shape().columns();
        match self {
            Input::Gated(_) if !columns.is_multiple_of(2) => {
                Err(check::wrong(operator, "x", x, "an even number of columns".to_owned()))
            }
            Input::Gated(_) => Ok(columns / 2),
            _ => Ok(columns),
        }
    }

    /// Columns of `x` for each column of the layer's input.
    pub(super) fn parts(self) -> usize {
        if matches!(self, Input::Gated(_)) { 2 } else { 1 }
    }
}
