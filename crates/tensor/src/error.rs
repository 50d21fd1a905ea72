//! Errors of operators.

use device::{DType, DeviceError};

use crate::Shape;

/// Result type of the operators.
pub type Result<T> = std::result::Result<T, TensorError>;

/// Error of an operator that refused its operands or failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "messages name their fields")]
pub enum TensorError {
    #[error("{operator}: {operand} has shape {actual}, expected {expected}")]
    Shape { operator: &'static str, operand: &'static str, actual: Shape, expected: String },
    #[error("a weight {shape} was used while its values were released")]
    Released { shape: Shape },
    /// The values of a weight could not be gathered from the ranks that hold them.
    #[error("gathering a weight {shape}: {source}")]
    Gather {
        shape: Shape,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("{operator}: {operand} is {actual}, expected {expected}")]
    DType { operator: &'static str, operand: &'static str, actual: DType, expected: DType },
    #[error("{operator}: {operand} is {actual}, expected {}", names(.supported))]
    Unsupported { operator: &'static str, operand: &'static str, actual: DType, supported: &'static [DType] },
    /// An index, such as a token or a class, that is not below its limit.
    #[error("{operator}: index {index} is outside 0..{limit}")]
    Index { operator: &'static str, index: u32, limit: usize },
    /// Attention heads that do not divide: a count or width of 0, or query heads that are no multiple of the
    /// key and value heads.
    #[error(
        "{operator}: {query} query heads and {key_value} key and value heads of width {width}, expected at least 1 \
         of each and query heads a multiple of key and value heads"
    )]
    Heads { operator: &'static str, query: usize, key_value: usize, width: usize },
    #[error("{operator}: no kernel for heads of width {width} in {dtype} on a GPU: {supported}")]
    HeadWidth { operator: &'static str, dtype: DType, width: usize, supported: String },
    /// The number of tensors is not the number that the table was made for.
    #[error("{operator}: {actual} tensors, expected {expected}")]
    Count { operator: &'static str, actual: usize, expected: usize },
    /// An array has more rows, columns or blocks than the 32-bit counters of a kernel hold.
    #[error("{operator}: {size} is more than a kernel can count")]
    TooLarge { operator: &'static str, size: usize },
    #[error(transparent)]
    Device(#[from] DeviceError),
}

fn names(dtypes: &[DType]) -> String {
    dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(" or ")
}
