//! What the launches of several operators share.

use device::kernels::Family;
use device::{DType, Function};

use crate::{Result, Tensor, TensorError};

/// Threads of a block of most kernels.
pub(crate) const THREADS: u32 = 256;
/// Bytes of the widest access of a thread.
const ACCESS_BYTES: usize = 16;

/// The kernel for elements of `dtype`: `names` has the one for f32, then the one for bf16.
pub(crate) fn kernel(family: &'static Family, names: [&'static str; 2], dtype: DType) -> Function {
    Function::new(family, names[usize::from(dtype == DType::Bf16)])
}

/// The kernel that makes gradients of weights: `names` has the one for f32, then those that compute from bf16 into f32 and
/// into bf16.
pub(crate) fn gradient_kernel(
    family: &'static Family,
    names: [&'static str; 3],
    computed: DType,
    target: DType,
) -> Function {
    let half = |dtype| usize::from(dtype == DType::Bf16);
    Function::new(family, names[half(computed) + half(target)])
}

/// Elements of `dtype` that a thread takes at once.
pub(crate) fn lanes(dtype: DType) -> usize {
    ACCESS_BYTES / dtype.bytes()
}

/// Where a tensor begins on the device.
pub(crate) fn address(tensor: &Tensor) -> u64 {
    let region = tensor.region();
    region.buffer.address() + region.offset as u64
}

/// Whether all begin where the widest accesses may.
pub(crate) fn aligned(tensors: &[&Tensor]) -> bool {
    tensors.iter().all(|tensor| address(tensor).is_multiple_of(ACCESS_BYTES as u64))
}

/// A count as kernels take it. Errors: more than 32 bits.
pub(crate) fn word(operator: &'static str, size: usize) -> Result<u32> {
    u32::try_from(size).map_err(|_| TensorError::TooLarge { operator, size })
}

/// Bytes that moving each of these once moves.
pub(crate) fn bytes(tensors: &[&Tensor]) -> u64 {
    tensors.iter().map(|tensor| tensor.bytes() as u64).sum()
}
