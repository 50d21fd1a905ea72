//! The precision of every operator on half-precision operands: which compute in the half type, and which in
//! f32.
//!
//! Operators choose nothing at run time: the table says what each one does, and programs with operators of
//! their own add rows to it.

use std::fmt;

/// The precision of an operator's arithmetic on half-precision operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Matmuls: products of operands in the half type, sums in f32, rounded once.
    Half,
    /// Everything in f32, and results rounded once.
    F32,
    /// None: elements are moved.
    Moves,
}

impl Arithmetic {
    /// The name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Arithmetic::Half => "half operands, f32 sums",
            Arithmetic::F32 => "f32",
            Arithmetic::Moves => "none",
        }
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperatorPrecision {
    /// The operator's name on the tape.
    pub operator: &'static str,
    /// The precision of its arithmetic.
    pub arithmetic: Arithmetic,
    /// Values that are kept or returned in f32 whatever the type of the operands; empty if none.
    pub in_f32: &'static str,
}

const fn row(operator: &'static str, arithmetic: Arithmetic, in_f32: &'static str) -> OperatorPrecision {
    OperatorPrecision { operator, arithmetic, in_f32 }
}

/// The operators of this crate, by name.
const STANDARD: &[OperatorPrecision] = &[
    row("activation", Arithmetic::F32, ""),
    row("adapted_linear", Arithmetic::Half, ""),
    row("add", Arithmetic::F32, ""),
    row("attention", Arithmetic::Half, "softmax, logsumexp"),
    row("average_pool", Arithmetic::F32, ""),
    row("batch_norm", Arithmetic::F32, "mean, rstd, running statistics"),
    row("concatenate", Arithmetic::Moves, ""),
    row("convolution", Arithmetic::Half, ""),
    row("cross_entropy", Arithmetic::F32, "softmax, loss"),
    row("dropout", Arithmetic::F32, ""),
    row("embedding", Arithmetic::F32, ""),
    row("feed_forward", Arithmetic::Half, "activation function"),
    row("gated_feed_forward", Arithmetic::Half, "activation function"),
    row("gather", Arithmetic::Moves, ""),
    row("layer_norm", Arithmetic::F32, "mean, rstd"),
    row("linear", Arithmetic::Half, "activation function"),
    row("linear_cross_entropy", Arithmetic::Half, "softmax, loss, sum of input gradients"),
    row("matmul", Arithmetic::Half, ""),
    row("max_pool", Arithmetic::F32, ""),
    row("maximum", Arithmetic::F32, ""),
    row("mse", Arithmetic::F32, "loss, in f64 sums"),
    row("pair", Arithmetic::F32, ""),
    row("parameter", Arithmetic::Moves, ""),
    row("pointwise", Arithmetic::F32, ""),
    row("qk_norm", Arithmetic::F32, "rstd"),
    row("reshape", Arithmetic::Moves, ""),
    row("residual_layer_norm", Arithmetic::F32, "mean, rstd"),
    row("residual_rms_norm", Arithmetic::F32, "rstd"),
    row("rms_norm", Arithmetic::F32, "rstd"),
    row("rotary", Arithmetic::F32, "angles"),
    row("slice", Arithmetic::Moves, ""),
    row("softmax", Arithmetic::F32, ""),
    row("sum", Arithmetic::F32, ""),
    row("transpose", Arithmetic::Moves, ""),
];

/// The precision of operators by name.
#[derive(Clone, Debug)]
pub struct PrecisionTable(Vec<OperatorPrecision>);

impl Default for PrecisionTable {
    /// The operators of this crate.
    fn default() -> Self {
        PrecisionTable(STANDARD.to_vec())
    }
}

impl PrecisionTable {
    /// Returns the table with a row for another operator, in place of one of the same name.
    #[must_use]
    pub fn with(mut self, row: OperatorPrecision) -> Self {
        self.0.retain(|own| own.operator != row.operator);
        self.0.push(row);
        self
    }

    /// The row of an operator.
    #[must_use]
    pub fn find(&self, operator: &str) -> Option<&OperatorPrecision> {
        self.0.iter().find(|row| row.operator == operator)
    }

    /// All rows.
    pub fn rows(&self) -> impl Iterator<Item = &OperatorPrecision> {
        self.0.iter()
    }
}

impl fmt::Display for PrecisionTable {
    /// A line for each row: operator, arithmetic, what stays in f32.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|row| {
            writeln!(f, "{:<22} {:<24} {}", row.operator, row.arithmetic.name(), row.in_f32)
        })
    }
}
