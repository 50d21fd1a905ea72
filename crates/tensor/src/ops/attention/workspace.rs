//! Workspace of attention.

use device::DType;

/// Bytes of the backward pass: for every query an f32 sum of dy · output (delta) and, for types computed on
/// tensor cores, its log-sum-exp in powers of two.
pub(super) fn backward(dtype: DType, batch: usize, heads: usize, time: usize) -> usize {
    let numbers = if dtype == DType::F32 { 1 } else { 2 };
    4 * numbers * batch * heads * time
}
