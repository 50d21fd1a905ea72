//! Properties of a call that decide about its kernels, besides its type and heads.

use super::hopper::Pairs;

/// Properties of a call, and of its device, that decide about kernels.
#[derive(Clone, Copy, Default)]
pub(super) struct Needs {
    /// Whether scores are capped, or queries are those of a piece of a sequence.
    pub(super) general: bool,
    pub(super) sinks: bool,
    /// Pairs of queries and keys, for Hopper's kernels.
    pub(super) pairs: Pairs,
    /// Whether Hopper's kernels support the call.
    pub(super) hopper: bool,
    /// Whether blocks of the device have 227 KiB of shared memory.
    pub(super) large: bool,
}
