//! Items shared by the launches of several operators.

use device::{DType, Device, Request};

use crate::{Result, Tensor, TensorError};

/// Threads of a block of most kernels, which take it as [`THREADS_CONSTANT`].
pub(crate) const THREADS: u32 = 256;
/// [`THREADS`] as a compile-time constant of the kernels.
pub(crate) const THREADS_CONSTANT: (&str, u32) = ("THREADS", THREADS);
/// Number of words over which blocks spread an array's largest magnitude; all start as zero.
pub(crate) const CELLS: usize = THREADS as usize;
/// [`CELLS`] as a compile-time constant of the kernels.
pub(crate) const CELLS_CONSTANT: (&str, u32) = ("CELLS", CELLS as u32);
/// Bytes of the widest access of a thread.
const ACCESS_BYTES: usize = 16;

/// Returns the elements of `dtype` in a thread's widest access (16 bytes). Rows must be a multiple of it to
/// be aligned for such accesses.
pub fn lanes(dtype: DType) -> usize {
    ACCESS_BYTES / dtype.bytes()
}

/// Allocates the words that receive a largest magnitude; `None` on the CPU.
pub(crate) fn cells(device: &Device, request: Request) -> Result<Option<Tensor>> {
    if !device.is_cuda_like() {
        return Ok(None);
    }
    let cells = Tensor::empty(device, [CELLS], DType::U32, request)?;
    cells.zero()?;
    Ok(Some(cells))
}

/// Attaches memory for the largest magnitude of `tensor`, allocated by [`cells`], if `measures`.
pub(crate) fn with_cells(tensor: Tensor, measures: bool, request: Request) -> Result<Tensor> {
    let cells = if measures { cells(tensor.device(), request)? } else { None };
    Ok(tensor.with_maxima(cells))
}

/// Returns the address of a tensor's first element on the device.
pub(crate) fn address(tensor: &Tensor) -> u64 {
    let region = tensor.region();
    region.buffer.address() + region.offset as u64
}

/// Returns whether all tensors are aligned for 16-byte accesses.
pub(crate) fn aligned(tensors: &[&Tensor]) -> bool {
    tensors.iter().all(|tensor| address(tensor).is_multiple_of(ACCESS_BYTES as u64))
}

/// Returns whether a block may have the shared memory of kernels that keep two chunks' tiles there, 174 KiB.
pub(crate) fn has_memory_for_tiles(device: &Device) -> bool {
    (9..12).contains(&device.description().compute_capability.0)
}

/// Converts a size to the 32-bit argument of a kernel.
///
/// # Errors
/// A size of more than 32 bits.
pub(crate) fn word(operator: &'static str, size: usize) -> Result<u32> {
    u32::try_from(size).map_err(|_| TensorError::TooLarge { operator, size })
}

/// Returns the bytes moved by reading or writing each tensor once.
pub(crate) fn bytes(tensors: &[&Tensor]) -> u64 {
    tensors.iter().map(|tensor| tensor.bytes() as u64).sum()
}
