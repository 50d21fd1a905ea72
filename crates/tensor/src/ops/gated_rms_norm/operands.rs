//! Operands of the gated norm.

use device::DType;

use crate::ops::check;
use crate::{Result, Tensor};

device::names! {
    /// Function of the gate.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum GateFunction {
        /// z · sigmoid(z).
        Silu = "silu",
        /// sigmoid(z).
        Sigmoid = "sigmoid",
    }
}

/// Operands of the norm, all of one type: rows of heads, as wide as the weight.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// The input, `[batch, time, columns]`.
    pub x: &'a Tensor,
    /// Gates before their function, of the input's shape.
    pub z: &'a Tensor,
    /// Weight of every head, `[width]`.
    pub weight: &'a Tensor,
}

/// Options of the norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Number added to the mean squares.
    pub epsilon: f32,
    /// Function of the gates.
    pub function: GateFunction,
}

/// Gradients of the inputs, and partial sums of the weight's gradient.
#[derive(Clone, Debug)]
pub struct Gradients {
    /// Gradient of the input.
    pub x: Tensor,
    /// Gradient of the gates before their function.
    pub z: Tensor,
    /// Sums of the weight's gradient over runs of rows, `[runs, width]` f32.
    pub sums: Tensor,
}

/// Width of the widest head: partial sums of a block must fit into 48 KiB of shared memory.
const WIDEST: usize = 1024;
/// Minimum number of heads that one block of threads adds.
const ROWS: usize = 8;
/// Maximum number of runs of heads.
const RUNS: usize = 512;

/// Returns the number of runs into which heads are divided, one per GPU block or host task; at least 1.
pub(super) fn runs(rows: usize) -> usize {
    rows.div_ceil(ROWS).clamp(1, RUNS)
}

impl Operands<'_> {
    /// Returns the number of heads of all rows, their width, and the type.
    pub(super) fn check(&self, operator: &'static str) -> Result<([usize; 2], DType)> {
        let Operands { x, z, weight } = *self;
        let dtype = check::computed(operator, &[("x", x), ("z", z), ("weight", weight)])?;
        check::not_empty(operator, "x", x)?;
        check::shape(operator, "z", z, x.shape())?;
        check::rank(operator, "weight", weight, 1)?;
        let width = weight.elements();
        if width > WIDEST || !x.shape().columns().is_multiple_of(width) {
            return Err(check::wrong(
                operator,
                "x",
                x,
                format!("heads of {width} columns, at most {WIDEST}"),
            ));
        }
        Ok(([x.elements() / width, width], dtype))
    }
}
