//! Properties of a call, besides type and heads, that select its kernels.

use super::hopper::Pairs;

/// Properties of a call and its device that select kernels.
#[derive(Clone, Copy, Default)]
pub(super) struct Needs {
    /// Whether scores are capped, or the queries are only part of a sequence.
    pub(super) general: bool,
    /// Whether query heads have attention sinks.
    pub(super) sinks: bool,
    /// Kind of query-key pairs that Hopper's kernels would compute, such as causal or windowed ones.
    pub(super) pairs: Pairs,
    /// Whether Hopper's kernels support the call.
    pub(super) hopper: bool,
    /// Whether blocks of the device have 227 KiB of shared memory.
    pub(super) large: bool,
}
