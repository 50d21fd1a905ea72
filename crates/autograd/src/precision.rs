//! Autocast: the table that decides in which type every operator takes its operands.
//!
//! With f32 weights and a half compute type, every operator of [`ops`](crate::ops) asks the table of its pass
//! for the type of its operands, and takes its weights in the same one. Programs with operators of their own
//! add rows and ask through [`ops::autocast`](crate::ops::autocast). Weights in the compute type need no
//! table: all operands have that type, and kernels compute in f32 where the table says so.

use std::fmt;

use device::DType;

device::names! {
    /// The type in which an operator takes its operands under autocast.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Operands {
        /// The half type, which results then have too.
        Half = "half",
        /// f32.
        F32 = "f32",
        /// The widest type among the operands.
        Widest = "widest",
        /// The types that they have.
        Unchanged = "as given",
    }
}

device::names! {
    /// The precision of an operator's arithmetic on half-precision operands.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Arithmetic {
        /// Matmuls: products of operands in the half type, sums in f32, rounded once.
        Half = "half operands, f32 sums",
        /// Everything in f32, and results rounded once.
        F32 = "f32",
        /// None: elements are moved.
        Moves = "none",
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperatorPrecision {
    /// The operator's name on the tape.
    pub operator: &'static str,
    /// The type of its operands under autocast.
    pub operands: Operands,
    /// The precision of its arithmetic on half-precision operands.
    pub arithmetic: Arithmetic,
    /// Values that are kept or returned in f32 whatever the type of the operands; empty if none.
    pub in_f32: &'static str,
}

/// A matmul.
const fn half(operator: &'static str, in_f32: &'static str) -> OperatorPrecision {
    OperatorPrecision { operator, operands: Operands::Half, arithmetic: Arithmetic::Half, in_f32 }
}

/// An operator whose operands are widened, and which would compute in f32 on half ones too.
const fn single(operator: &'static str, in_f32: &'static str) -> OperatorPrecision {
    OperatorPrecision { operator, operands: Operands::F32, arithmetic: Arithmetic::F32, in_f32 }
}

/// An operator that computes in f32 and rounds its result to the operands' type.
const fn unchanged(operator: &'static str, in_f32: &'static str) -> OperatorPrecision {
    OperatorPrecision { operator, operands: Operands::Unchanged, arithmetic: Arithmetic::F32, in_f32 }
}

const fn widest(operator: &'static str, arithmetic: Arithmetic) -> OperatorPrecision {
    OperatorPrecision { operator, operands: Operands::Widest, arithmetic, in_f32: "" }
}

const fn moves(operator: &'static str) -> OperatorPrecision {
    OperatorPrecision { operator, operands: Operands::Unchanged, arithmetic: Arithmetic::Moves, in_f32: "" }
}

/// The operators of this crate, by name. As in PyTorch, matmuls, convolutions and attention take half
/// operands, and norms, softmax, sums and losses of numbers f32. The loss of classes takes its scores as they
/// are: it computes in f32, and a wide copy of them would change no bit.
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
    widest("concatenate", Arithmetic::Moves),
    half("convolution", ""),
    half("copy_to_shards", "sum of gradients"),
    unchanged("cross_entropy", "softmax, loss"),
    unchanged("dropout", ""),
    unchanged("embedding", ""),
    moves("exchange"),
    half("experts", "weights of choices, sums of a row's experts"),
    half("feed_forward", "activation function"),
    half("folded_convolution", "weight and bias until they are folded"),
    half("gated_feed_forward", "activation function"),
    moves("gather"),
    moves("join_pieces"),
    half("latent_qkv", "sum of gradients over heads"),
    single("layer_norm", "mean, rstd"),
    half("linear", "activation function"),
    half("linear_cross_entropy", "softmax, loss, input gradients"),
    half("matmul", ""),
    unchanged("max_pool", ""),
    unchanged("maximum", ""),
    single("mse", "loss, in f64 sums"),
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
    moves("slice"),
    single("softmax", ""),
    moves("split"),
    moves("split_pieces"),
    single("sum", ""),
    unchanged("sum_pieces", ""),
    half("sum_shards", "sum of outputs"),
    moves("transpose"),
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
    /// A line for each row: operator, operands, arithmetic, what stays in f32.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|row| {
            let OperatorPrecision { operator, operands, arithmetic, in_f32 } = row;
            writeln!(f, "{operator:<22} {:<8} {:<24} {in_f32}", operands.name(), arithmetic.name())
        })
    }
}

/// The casts of passes whose weights are f32 and whose matmuls are in half precision.
#[derive(Clone, Debug)]
pub struct Autocast {
    /// The half type.
    pub half: DType,
    /// The types of operands.
    pub table: PrecisionTable,
}

impl Autocast {
    /// Returns the type in which `operator` takes operands of the types `dtypes`; `None` if it takes each
    /// as it is, as an operator without a row does. Integers are never cast.
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
