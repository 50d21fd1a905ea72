//! Workspace of attention.

use device::DType;

/// Returns the bytes of workspace of the backward pass. Every query needs an f32 delta (the sum of dy ·
/// output); types computed on tensor cores also need its log-sum-exp in base 2.
pub(super) fn backward(dtype: DType, batch: usize, heads: usize, time: usize) -> usize {
    let numbers = if dtype == DType::F32 { 1 } else { 2 };
    4 * numbers * batch * heads * time
}
