//! Functions that are applied to a layer's input while it is cast to FP8.

use crate::ops::{Activation, check};
use crate::{Result, Tensor};

/// The function of a stored tensor that is a layer's input. It is computed while its result is cast, so only
/// the FP8 codes are stored. The result is first rounded to the tensor's type, as if it were stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Input {
    /// The tensor itself.
    #[default]
    Plain,
    /// An activation of each element.
    Activated(Activation),
    /// `activation(g) · u` for rows `[g | u]`.
    Gated(Activation),
}

impl Input {
    /// Returns the number of columns of the layer's input for a tensor `x`.
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

    /// Returns how many columns of `x` make one column of the layer's input: 2 for a gate, else 1.
    pub(super) fn parts(self) -> usize {
        if matches!(self, Input::Gated(_)) { 2 } else { 1 }
    }
}
