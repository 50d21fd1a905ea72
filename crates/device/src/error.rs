//! Errors of a device, with the rank, device and size of the failed request.

use memory::AllocationError;

use crate::cuda::error::CudaError;
use crate::dtype::DType;
use crate::kernels::Function;

/// Result of a device call.
pub type Result<T> = std::result::Result<T, DeviceError>;

/// A failed device call.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "messages name their fields")]
pub enum DeviceError {
    /// The caching allocator could not serve a request. The source error has the counters.
    #[error("rank {rank}, {device}: {operator} asked for {bytes} bytes: {source}")]
    Allocation {
        rank: usize,
        device: String,
        operator: &'static str,
        bytes: u64,
        #[source]
        source: AllocationError,
    },
    #[error("{device}: {source}")]
    Settings {
        device: String,
        #[source]
        source: AllocationError,
    },
    /// Two overlapping accesses at the same time. At least one writes.
    #[error("bytes {start}..{end} of a buffer cannot be borrowed to {access}: they are in use")]
    Aliased {
        /// Offset of the first byte in the buffer.
        start: usize,
        /// Offset one past the last byte.
        end: usize,
        /// The refused access: `read` or `write`.
        access: &'static str,
    },
    /// A region outside its buffer, or misaligned for its element type.
    #[error("bytes {start}..{end} are not an aligned part of a buffer of {bytes} bytes")]
    OutOfBounds {
        /// Offset of the first byte in the buffer.
        start: usize,
        /// Offset one past the last byte.
        end: usize,
        bytes: usize,
    },
    /// Two operands of a copy or a matmul have lengths that disagree.
    #[error("{operator}: lengths {left} and {right} disagree")]
    Length { operator: &'static str, left: usize, right: usize },
    /// The driver or one of its libraries returned an error.
    #[error("rank {rank}, {device}: {source}")]
    Cuda {
        rank: usize,
        device: String,
        #[source]
        source: CudaError,
    },
    /// An operator has no kernel for these element types.
    #[error("there is no kernel {function} (kernels/{}.cu)", .function.family().name)]
    MissingKernel { function: Function },
    #[error("{call} does not exist for {dtype}")]
    Unsupported { call: &'static str, dtype: DType },
    #[error("{call} needs a GPU; {device} is not one")]
    NotOnGpu { call: &'static str, device: String },
    /// A convolution was requested, but cuDNN cannot be opened.
    #[error(
        "convolutions on a GPU need cuDNN, which cannot be opened: install cuDNN 9 or set LD_LIBRARY_PATH"
    )]
    NoCudnn,
    #[error("{device} has no memory that the host can read or write")]
    NotOnHost { device: &'static str },
}
