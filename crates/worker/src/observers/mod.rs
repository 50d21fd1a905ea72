//! Observers of a rank's steps: user hooks, times, hashes, and the driver's memory by cause.

pub(crate) mod account;
pub(crate) mod hooks;
pub(crate) mod operator_timer;
pub(crate) mod ranges;
pub(crate) mod tensor_hashes;
