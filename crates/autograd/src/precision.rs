//! Autocast: a table of the dtype to which each operator casts its operands.
//!
//! With f32 weights and a half-precision compute dtype, every operator of [`ops`](crate::ops) looks up the
//! dtype of its operands in the pass's table, and uses its weights in the same dtype. Programs with operators
//! of their own add rows, and call [`ops::autocast`](crate::ops::autocast). If weights have the compute
//! dtype, no table is needed: all operands have that dtype, and kernels compute internally in f32 as listed
//! in the table.

use std::fmt;

use device::DType;

device::names! {
    /// The dtype of an operator's operands under autocast.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Operands {
        /// The half-precision dtype, which results then have too.
        Half = "half",
        /// f32.
        F32 = "f32",
        /// The widest dtype among the operands.
        Widest = "widest",
        /// The operands' own dtypes.
        Unchanged = "as given",
    }
}

device::names! {
    /// The precision of an operator's arithmetic on half-precision operands.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Arithmetic {
        /// Matmuls: half-precision products, f32 sums, one rounding.
        Half = "half operands, f32 sums",
        /// All arithmetic in f32; results are rounded once.
        F32 = "f32",
        /// No arithmetic: elements are moved.
        Moves = "none",
    }
}

/// An operator's row in the autocast table: the dtype of its operands and the precision of its arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperatorPrecision {
    /// The operator's name on the tape.
    pub operator: &'static str,
    /// Dtype of the operands under autocast.
    pub operands: Operands,
    /// Precision of the arithmetic on half-precision operands.
    pub arithmetic: Arithmetic,
    /// Values that are always f32, whatever the operands' dtype; empty if none.
    pub in_f32: &'static str,
}

/// Returns the row of a matmul, whose operands are rounded to the half-precision dtype.
const fn half(operator: &'static str, in_f32: &'static str) -> OperatorPrecision {
    OperatorPrecision { operator, operands: Operands::Half, arithmetic: Arithmetic::Half, in_f32 }
}

/// Returns the row of an operator whose operands are widened to f32, in which it computes.
const fn single(operator: &'static str, in_f32: &'static str) -> OperatorPrecision {
    OperatorPrecision { operator, operands: Operands::F32, arithmetic: Arithmetic::F32, in_f32 }
}

/// Returns the row of an operator that computes in f32 and rounds its result to the operands' dtype.
const fn unchanged(operator: &'static str, in_f32: &'static str) -> OperatorPrecision {
    OperatorPrecision { operator, operands: Operands::Unchanged, arithmetic: Arithmetic::F32, in_f32 }
}

/// Returns the row of an operator whose operands are cast to the widest of their dtypes.
const fn widest(operator: &'static str, arithmetic: Arithmetic) -> OperatorPrecision {
    OperatorPrecision { operator, operands: Operands::Widest, arithmetic, in_f32: "" }
}

/// Returns the row of an operator that only moves elements.
const fn moves(operator: &'static str) -> OperatorPrecision {
    OperatorPrecision { operator, operands: Operands::Unchanged, arithmetic: Arithmetic::Moves, in_f32: "" }
}

/// Rows of this crate's operators, by name. As in PyTorch, matmuls, convolutions and attention take
/// half-precision operands; norms, softmax, sums and regression losses take f32. Cross-entropy takes its
/// scores unchanged, because it computes in f32 and a wider copy would change no bit.
const STANDARD: &[OperatorPrecision] = &[
    unchanged("activation", ""),
    half("adapted_linear", ""),
    widest("add", Arithmetic::F32),
    moves("all_gather"),
    unchanged("all_reduce", ""),
    half("attention", "softmax, logsumexp, sums of gradients over pieces"),
    unchanged("average_pool", ""),
    single("batch_norm", "mean, rstd, running statistics"),
    moves("cast"),
    unchanged("causal_convolution", ""),
    widest("concatenate", Arithmetic::Moves),
    half("convolution", ""),
    half("copy_to_shards", "sum of gradients"),
    unchanged("cross_entropy", "softmax, loss"),
    single("delta_gates", "decays, rates"),
    single("divided_rms_norm", "rstd, sums over shards"),
    unchanged("dropout", ""),
    unchanged("embedding", ""),
    moves("exchange"),
    half("experts", "weights of choices, sums of a row's experts"),
    half("feed_forward", "activation function"),
    half("folded_convolution", "weight and bias until they are folded"),
    half("gated_delta_rule", "decays, rates, states, all sums"),
    half("gated_feed_forward", "activation function"),
    half("gated_rms_norm", "rstd, gate"),
    moves("gather"),
    unchanged("join_losses", "losses"),
    moves("join_pieces"),
    half("latent_qkv", "sum of gradients over heads"),
    single("layer_norm", "mean, rstd"),
    half("linear", "activation function"),
    half("linear_cross_entropy", "softmax, loss, input gradients"),
    half("matmul", ""),
    unchanged("max_pool", ""),
    unchanged("maximum", ""),
    single("mse", "loss, in f64 sums"),
    unchanged("noise", ""),
    widest("pair", Arithmetic::F32),
    moves("parameter"),
    unchanged("pointwise", ""),
    single("qk_norm", "rstd"),
    unchanged("reduce_scatter", ""),
    moves("reshape"),
    single("residual_layer_norm", "mean, rstd"),
    single("residual_rms_norm", "rstd"),
    single("rms_norm", "rstd"),
    unchanged("rotary", "angles"),
    unchanged("router", "logits"),
    unchanged("routing", "scores, weights"),
    half("row_linear", "sum of weight gradients"),
    single("row_qk_norm", "rstd, sums over shards"),
    unchanged("share_groups", "sums of gradients over shards"),
    widest("sigmoid_gate", Arithmetic::F32),
    moves("slice"),
    single("softmax", ""),
    moves("split"),
    moves("split_pieces"),
    half("state_space_scan", "decays, time steps, states, all sums"),
    single("sum", ""),
    unchanged("sum_pieces", ""),
    half("sum_shards", "sum of outputs"),
    moves("transpose"),
];

/// Table of operators' precision, by name.
#[derive(Clone, Debug)]
pub struct PrecisionTable(Vec<OperatorPrecision>);

impl Default for PrecisionTable {
    /// Returns the rows of this crate's operators.
    fn default() -> Self {
        PrecisionTable(STANDARD.to_vec())
    }
}

impl PrecisionTable {
    /// Adds a row, replacing any row of the same operator.
    #[must_use]
    pub fn with(mut self, row: OperatorPrecision) -> Self {
        self.0.retain(|own| own.operator != row.operator);
        self.0.push(row);
        self
    }

    /// Returns the row of an operator.
    #[must_use]
    pub fn find(&self, operator: &str) -> Option<&OperatorPrecision> {
        self.0.iter().find(|row| row.operator == operator)
    }

    /// All rows of the table.
    pub fn rows(&self) -> impl Iterator<Item = &OperatorPrecision> {
        self.0.iter()
    }
}

impl fmt::Display for PrecisionTable {
    /// Formats one line per row: operator, operands, arithmetic, and the values that stay in f32.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|row| {
            let OperatorPrecision { operator, operands, arithmetic, in_f32 } = row;
            writeln!(f, "{operator:<22} {:<8} {:<24} {in_f32}", operands.name(), arithmetic.name())
        })
    }
}

/// The casts of a pass with f32 weights and half-precision matmuls.
#[derive(Clone, Debug)]
pub struct Autocast {
    /// The half-precision dtype.
    pub half: DType,
    /// Dtypes of operands, by operator.
    pub table: PrecisionTable,
}

impl Autocast {
    /// Returns the dtype to which `operator` casts operands of types `dtypes`; `None` if they are unchanged,
    /// as for an operator without a row. Integers are never cast.
    #[must_use]
    pub fn operand_type(&self, operator: &str, dtypes: impl Iterator<Item = DType>) -> Option<DType> {
        match self.table.find(operator)?.operands {
            Operands::Half => Some(self.half),
            Operands::F32 => Some(DType::F32),
            Operands::Widest => dtypes.filter(|dtype| dtype.is_float()).max_by_key(|dtype| dtype.bytes()),
            Operands::Unchanged => None,
        }
    }
}
