//! Errors of NCCL.

use cudarc::nccl::sys;

/// An NCCL error: code and text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// NCCL's result code; 0 for other errors.
    pub(super) code: i64,
    /// Text of the error.
    pub(super) text: String,
}

/// Result of an NCCL call.
pub(super) type Result<T> = std::result::Result<T, Fault>;

impl Fault {
    /// Creates an error about this program's use of NCCL.
    pub(super) fn internal(text: &str) -> Self {
        Fault { code: sys::ncclResult_t::ncclInternalError as i64, text: text.to_owned() }
    }
}
