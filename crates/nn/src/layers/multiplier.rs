//! Multiplication by a constant.

use autograd::ops::Pointwise;
use autograd::{Tape, Var, ops};

use super::within;
use crate::error::Result;

/// A constant factor. With 1, no operator is called.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Multiplier(f32);

impl Multiplier {
    /// The factor 1.
    pub const ONE: Self = Multiplier(1.0);

    /// Creates a multiplication by `factor`.
    pub fn new(factor: f64) -> Self {
        Multiplier(factor as f32)
    }

    /// Multiplies `x`, of any shape.
    pub fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        match *self {
            Multiplier::ONE => Ok(x),
            Multiplier(factor) => {
                within(tape, "scale", || Ok(ops::pointwise(tape, x, Pointwise::Scale(factor))?))
            }
        }
    }
}
