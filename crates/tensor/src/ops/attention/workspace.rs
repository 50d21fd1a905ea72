//! Workspace of attention.

use device::DType;

use super::geometry::Geometry;

/// Returns the bytes of workspace of the backward pass. Every query needs an f32 delta (the sum of dy ·
/// output); types computed on tensor cores also need its log-sum-exp in base 2.
pub(super) fn backward(dtype: DType, batch: usize, heads: usize, time: usize) -> usize {
    let numbers = if dtype == DType::F32 { 1 } else { 2 };
    4 * numbers * batch * heads * time
}

/// Returns the bytes of the gradients of keys and of values by parts of their query heads; 0 without parts.
pub(super) fn parts(dtype: DType, geometry: Geometry) -> [usize; 2] {
    let heads = geometry.heads;
    let each = match heads.parts() {
        1 => 0,
        parts => dtype.bytes() * geometry.batch * geometry.end() * parts,
    };
    [each * heads.key_columns(), each * heads.value_columns()]
}
