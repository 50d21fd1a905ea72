//! Workspace of attention.

use device::DType;

/// Bytes for the backward pass: for every query an f32 that is the same along its row (delta), and besides, for types that
/// are computed on tensor cores, its log-sum-exp in powers of two.
pub(super) fn backward(dtype: DType, batch: usize, heads: usize, time: usize) -> usize {
    let numbers = if dtype == DType::F32 { 1 } else { 2 };
    4 * numbers * batch * heads * time
}
