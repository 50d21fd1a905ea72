//! Observers of a rank's steps: user code, times, hashes, and the driver's account of memory.

pub(crate) mod account;
pub(crate) mod hooks;
pub(crate) mod operator_timer;
pub(crate) mod ranges;
pub(crate) mod tensor_hashes;
