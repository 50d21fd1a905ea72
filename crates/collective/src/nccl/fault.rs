//! Errors of NCCL.

use cudarc::nccl::sys;

/// An error of NCCL: its code and text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// NCCL's result code; 0 where the error is not NCCL's.
    pub(super) code: i64,
    /// NCCL's words for it.
    pub(super) text: String,
}

/// Result of a call of NCCL.
pub(super) type Result<T> = std::result::Result<T, Fault>;

impl Fault {
    /// An error of this program in its use of NCCL.
    pub(super) fn internal(text: &str) -> Self {
        Fault { code: sys::ncclResult_t::ncclInternalError as i64, text: text.to_owned() }
    }
}
