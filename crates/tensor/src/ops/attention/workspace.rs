//! Workspace of attention.

use device::DType;

/// Bytes for the backward pass: for every query the sum of dy · output (delta) in f32, and for types that
/// tensor cores compute also its log-sum-exp in powers of two.
pub(super) fn backward(dtype: DType, batch: usize, heads: usize, time: usize) -> usize {
    let numbers = if dtype == DType::F32 { 1 } else { 2 };
    4 * numbers * batch * heads * time
}
