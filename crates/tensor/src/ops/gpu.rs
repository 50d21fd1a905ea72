//! Items shared by the launches of several operators.

use device::{DType, Device, Request};

use crate::{Result, Tensor, TensorError};

/// Threads of a block of most kernels, which are compiled with [`THREADS_CONSTANT`].
pub(crate) const THREADS: u32 = 256;
/// [`THREADS`] as a constant of the kernels.
pub(crate) const THREADS_CONSTANT: (&str, u32) = ("THREADS", THREADS);
/// Words over which the largest magnitude of an array is spread, zero at first.
pub(crate) const CELLS: usize = THREADS as usize;
/// [`CELLS`] as a constant of the kernels.
pub(crate) const CELLS_CONSTANT: (&str, u32) = ("CELLS", CELLS as u32);
/// Bytes of the widest access of a thread.
const ACCESS_BYTES: usize = 16;

/// Elements of `dtype` in a thread's widest access. Rows of another multiple are not aligned for such
/// accesses.
pub fn lanes(dtype: DType) -> usize {
    ACCESS_BYTES / dtype.bytes()
}

/// Allocates the words of a largest magnitude on devices whose operators measure it.
pub(crate) fn cells(device: &Device, request: Request) -> Result<Option<Tensor>> {
    if !device.is_cuda_like() {
        return Ok(None);
    }
    let cells = Tensor::empty(device, [CELLS], DType::U32, request)?;
    cells.zero()?;
    Ok(Some(cells))
}

/// Returns the tensor accompanied, if `measures`, by the words of its largest magnitude, which [`cells`]
/// allocates.
pub(crate) fn with_cells(tensor: Tensor, measures: bool, request: Request) -> Result<Tensor> {
    let cells = if measures { cells(tensor.device(), request)? } else { None };
    Ok(tensor.with_maxima(cells))
}

/// Address of a tensor's first element on the device.
pub(crate) fn address(tensor: &Tensor) -> u64 {
    let region = tensor.region();
    region.buffer.address() + region.offset as u64
}

/// Returns whether all tensors are aligned for the widest accesses.
pub(crate) fn aligned(tensors: &[&Tensor]) -> bool {
    tensors.iter().all(|tensor| address(tensor).is_multiple_of(ACCESS_BYTES as u64))
}

/// A count as kernels take it.
///
/// # Errors
/// More than 32 bits.
pub(crate) fn word(operator: &'static str, size: usize) -> Result<u32> {
    u32::try_from(size).map_err(|_| TensorError::TooLarge { operator, size })
}

/// Bytes moved by reading or writing each tensor once.
pub(crate) fn bytes(tensors: &[&Tensor]) -> u64 {
    tensors.iter().map(|tensor| tensor.bytes() as u64).sum()
}
