//! Errors of operators.

use device::{DType, DeviceError};

use crate::Shape;

/// Result of an operator.
pub type Result<T> = std::result::Result<T, TensorError>;

/// A refused or failed operator.
#[derive(Debug, thiserror::Error)]
pub enum TensorError {
    /// Operands whose shapes do not go together.
    #[error("{operator}: {operand} has shape {found}, expected {expected}")]
    Shape {
        /// The operator.
        operator: &'static str,
        /// The operand that does not fit.
        operand: &'static str,
        /// Its shape.
        found: Shape,
        /// The expected shape or value.
        expected: String,
    },
    /// An operand of a type that the operator does not take.
    #[error("{operator}: {operand} is {found}, expected {expected}")]
    DType {
        /// The operator.
        operator: &'static str,
        /// The operand that does not fit.
        operand: &'static str,
        /// Its type.
        found: DType,
        /// The expected shape or value.
        expected: DType,
    },
    /// An operand of an element type that the operator does not exist for.
    #[error("{operator}: {operand} is {found}, expected {}", names(.supported))]
    Unsupported {
        /// The operator.
        operator: &'static str,
        /// The operand.
        operand: &'static str,
        /// Its type.
        found: DType,
        /// The types that the operator exists for.
        supported: &'static [DType],
    },
    /// An index (a token, a class) outside its table.
    #[error("{operator}: index {index} is outside 0..{limit}")]
    Index {
        /// The operator.
        operator: &'static str,
        /// The index.
        index: u32,
        /// One past the largest.
        limit: usize,
    },
    /// Attention heads that do not divide: a count or width of 0, or query heads that are no multiple of key
    /// and value heads.
    #[error(
        "{operator}: {query} query heads and {key_value} key and value heads of width {width}, expected at least 1 \
         of each and query heads a multiple of key and value heads"
    )]
    Heads {
        /// The operator.
        operator: &'static str,
        /// Query heads.
        query: usize,
        /// Key and value heads.
        key_value: usize,
        /// Columns of a head.
        width: usize,
    },
    /// A width of attention heads without a kernel for the type.
    #[error("{operator}: no kernel for heads of width {width} in {dtype} on a GPU: {supported}")]
    HeadWidth {
        /// The operator.
        operator: &'static str,
        /// The type computed in.
        dtype: DType,
        /// Columns of a head.
        width: usize,
        /// The widths that have one.
        supported: String,
    },
    /// Another number of tensors than was prepared for.
    #[error("{operator}: {found} tensors, expected {expected}")]
    Count {
        /// The operator.
        operator: &'static str,
        /// Number given.
        found: usize,
        /// Number prepared for.
        expected: usize,
    },
    /// An array that a kernel cannot count.
    #[error("{operator}: {size} is more than a kernel can count")]
    TooLarge {
        /// The operator.
        operator: &'static str,
        /// Rows, columns or blocks.
        size: usize,
    },
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

fn names(dtypes: &[DType]) -> String {
    dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(" or ")
}
