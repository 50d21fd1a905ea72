//! Errors of operators.

use device::{DType, DeviceError};

use crate::Shape;

/// Result type of the operators.
pub type Result<T> = std::result::Result<T, TensorError>;

/// Error of an operator that refused its operands or failed.
#[derive(Debug, thiserror::Error)]
pub enum TensorError {
    /// Operands whose shapes do not agree.
    #[error("{operator}: {operand} has shape {actual}, expected {expected}")]
    Shape {
        /// The operator.
        operator: &'static str,
        /// The operand that does not fit.
        operand: &'static str,
        /// The operand's shape.
        actual: Shape,
        /// The expected shape or value.
        expected: String,
    },
    /// Values of a weight that are not in memory now.
    #[error("a weight {shape} was used while its values were released")]
    Released {
        /// The weight's shape.
        shape: Shape,
    },
    /// A weight whose values could not be gathered from the ranks that hold them.
    #[error("gathering a weight {shape}: {source}")]
    Gather {
        /// The weight's shape.
        shape: Shape,
        /// Reason of the failure.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An operand of another type than the operator requires.
    #[error("{operator}: {operand} is {actual}, expected {expected}")]
    DType {
        /// The operator.
        operator: &'static str,
        /// The operand that does not fit.
        operand: &'static str,
        /// The operand's type.
        actual: DType,
        /// The required type.
        expected: DType,
    },
    /// An operand of an element type for which the operator has no implementation.
    #[error("{operator}: {operand} is {actual}, expected {}", names(.supported))]
    Unsupported {
        /// The operator.
        operator: &'static str,
        /// The operand.
        operand: &'static str,
        /// The operand's type.
        actual: DType,
        /// The types that the operator implements.
        supported: &'static [DType],
    },
    /// An index (a token, a class) outside its table.
    #[error("{operator}: index {index} is outside 0..{limit}")]
    Index {
        /// The operator.
        operator: &'static str,
        /// The index.
        index: u32,
        /// The number of entries of the table.
        limit: usize,
    },
    /// Attention heads that do not divide: a count or width of 0, or query heads that are no multiple of the
    /// key and value heads.
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
        /// The compute type.
        dtype: DType,
        /// Columns of one head.
        width: usize,
        /// Head widths that have a kernel.
        supported: String,
    },
    /// A number of tensors other than the table was made for.
    #[error("{operator}: {actual} tensors, expected {expected}")]
    Count {
        /// The operator.
        operator: &'static str,
        /// Number of tensors.
        actual: usize,
        /// Number of tensors expected.
        expected: usize,
    },
    /// An array with more rows, columns or blocks than a kernel's 32-bit counters hold.
    #[error("{operator}: {size} is more than a kernel can count")]
    TooLarge {
        /// The operator.
        operator: &'static str,
        /// The number of rows, columns or blocks.
        size: usize,
    },
    /// An error of the device.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

fn names(dtypes: &[DType]) -> String {
    dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(" or ")
}
