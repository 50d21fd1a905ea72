//! Errors of a device, with the origin and size of the failed request.

use memory::AllocationError;

use crate::cuda::CudaError;
use crate::dtype::DType;
use crate::kernels::Function;

/// Result of a device call.
pub type Result<T> = std::result::Result<T, DeviceError>;

/// A failed device call.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The caching allocator could not serve a request; the source has every figure.
    #[error("rank {rank}, {device}: {operator} asked for {bytes} bytes: {source}")]
    Allocation {
        /// Rank that asked.
        rank: usize,
        /// Device's name.
        device: String,
        /// Operator that asked.
        operator: &'static str,
        /// Bytes asked for.
        bytes: u64,
        /// The allocator's own error.
        #[source]
        source: AllocationError,
    },
    /// The allocator's settings are not usable.
    #[error("{device}: {source}")]
    Settings {
        /// Device's name.
        device: String,
        /// The allocator's own error.
        #[source]
        source: AllocationError,
    },
    /// Two uses of one region at a time, at least one of them a write.
    #[error("bytes {start}..{end} of a buffer are in use while they are asked for to {access}")]
    Aliased {
        /// First byte in the buffer.
        start: usize,
        /// One past the last byte.
        end: usize,
        /// `read` or `write`.
        access: &'static str,
    },
    /// A region that is not inside its buffer, or not aligned for its element type.
    #[error("bytes {start}..{end} are not an aligned part of a buffer of {bytes} bytes")]
    OutOfBounds {
        /// First byte in the buffer.
        start: usize,
        /// One past the last byte.
        end: usize,
        /// The buffer's length.
        bytes: usize,
    },
    /// Two operands of a copy or a matmul whose lengths do not agree.
    #[error("{operator}: lengths {left} and {right} do not agree")]
    Length {
        /// The call.
        operator: &'static str,
        /// Length of the one.
        left: usize,
        /// Length of the other.
        right: usize,
    },
    /// The driver or one of its libraries refused a call.
    #[error("rank {rank}, {device}: {source}")]
    Cuda {
        /// Rank that called.
        rank: usize,
        /// Device's name.
        device: String,
        /// The call and its answer.
        #[source]
        source: CudaError,
    },
    /// A kernel that its operator has not for these element types.
    #[error("there is no kernel {function} (kernels/{}.cu)", .function.family().name)]
    MissingKernel {
        /// The kernel that was to be launched.
        function: Function,
    },
    /// A call that does not exist for an element type.
    #[error("{call} does not exist for {dtype}")]
    Unsupported {
        /// The call.
        call: &'static str,
        /// The type.
        dtype: DType,
    },
    /// A call that only a GPU has.
    #[error("{call} needs a GPU, and {device} is none")]
    NotOnGpu {
        /// The call.
        call: &'static str,
        /// Device's name.
        device: String,
    },
    /// Host access to memory that is not on the host.
    #[error("{device} has no memory that the host can read or write")]
    NotOnHost {
        /// Device's name.
        device: &'static str,
    },
}
