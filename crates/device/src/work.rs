//! The least work of a call, beside which its time is read.

/// The least that a call must do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes to or from device memory.
    pub bytes: u64,
    /// Floating-point operations.
    pub flops: u64,
}
