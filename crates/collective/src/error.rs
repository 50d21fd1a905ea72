//! Errors between ranks, with the reporting rank, the call, and the peer.

use std::time::Duration;

use device::DeviceError;

use crate::call::{Call, Signature};

/// Result of a collective.
pub type Result<T> = std::result::Result<T, CollectiveError>;

/// A rank that failed, and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Number in the world.
    pub rank: usize,
    /// The reason it gave.
    pub reason: String,
}

/// A failed collective. Ranks are numbers in the world, also where the call was in a smaller group.
#[derive(Debug, thiserror::Error)]
pub enum CollectiveError {
    /// A rank ended, so that no call can complete any more.
    #[error("rank {rank}, {call}: rank {peer} failed: {reason}")]
    PeerFailed {
        /// Rank that was waiting.
        rank: usize,
        /// The operation.
        call: Call,
        /// Rank that failed.
        peer: usize,
        /// The peer's reason.
        reason: String,
    },
    /// A rank gave no sign within the timeout.
    #[error("rank {rank}, {call}: rank {peer} did not answer within {:.1} s", waited.as_secs_f64())]
    Timeout {
        /// Rank that was waiting.
        rank: usize,
        /// The operation.
        call: Call,
        /// Rank for which it waited.
        peer: usize,
        /// The wait.
        waited: Duration,
    },
    /// Joint work of ranks was not over within the timeout, and no rank is known to have failed.
    #[error(
        "rank {rank}, {call}: it was not over within {:.1} s, and no rank is known to have failed",
        waited.as_secs_f64()
    )]
    Stalled {
        /// Rank that was waiting.
        rank: usize,
        /// The operation.
        call: Call,
        /// The wait.
        waited: Duration,
    },
    /// Two ranks are in different calls, or in one call with different operands.
    #[error("rank {rank} is in {mine}, but rank {peer} is in {theirs}")]
    Mismatch {
        /// Rank that noticed.
        rank: usize,
        /// The call that it is in.
        mine: Box<Signature>,
        /// The other rank.
        peer: usize,
        /// The call that the other rank is in.
        theirs: Box<Signature>,
    },
    /// An operand that no transport can serve.
    #[error("rank {rank}, {call}: {problem}")]
    Operand {
        /// Rank that called.
        rank: usize,
        /// The call.
        call: Call,
        /// The problem.
        problem: String,
    },
    /// A region could not be read or written.
    #[error("rank {rank}, {call}: {source}")]
    Device {
        /// Rank that called.
        rank: usize,
        /// The call.
        call: Call,
        /// The device's own error.
        #[source]
        source: Box<DeviceError>,
    },
    /// The library below the transport failed.
    #[error("rank {rank}, {call}: {library} error {code}: {text}")]
    Library {
        /// Rank that called.
        rank: usize,
        /// The call.
        call: Call,
        /// Name of the library, such as `NCCL`.
        library: &'static str,
        /// The library's error code.
        code: i64,
        /// The library's text for the error.
        text: String,
    },
}

impl CollectiveError {
    pub(crate) fn device(rank: usize, call: Call) -> impl FnOnce(DeviceError) -> Self {
        move |source| CollectiveError::Device { rank, call, source: Box::new(source) }
    }

    pub(crate) fn mismatch(rank: usize, mine: Signature, peer: usize, theirs: Signature) -> Self {
        CollectiveError::Mismatch { rank, mine: Box::new(mine), peer, theirs: Box::new(theirs) }
    }

    pub(crate) fn failed(rank: usize, call: Call, failure: Failure) -> Self {
        CollectiveError::PeerFailed { rank, call, peer: failure.rank, reason: failure.reason }
    }
}
