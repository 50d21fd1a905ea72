//! The least work of a call, with which its measured time is compared.

/// The least work that a call must do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes read from and written to device memory.
    pub bytes: u64,
    /// Floating-point operations.
    pub flops: u64,
}
