//! Properties of a call, besides type and heads, that select its kernels.

use super::hopper::Pairs;

/// Properties of a call and its device that select kernels.
#[derive(Clone, Copy, Default)]
pub(super) struct Needs {
    /// Whether scores are capped, or the queries are only part of a sequence.
    pub(super) general: bool,
    pub(super) sinks: bool,
    /// Pairs of queries and keys, for Hopper's kernels.
    pub(super) pairs: Pairs,
    /// Whether Hopper's kernels support the call.
    pub(super) hopper: bool,
    /// Whether blocks of the device have 227 KiB of shared memory.
    pub(super) large: bool,
}
