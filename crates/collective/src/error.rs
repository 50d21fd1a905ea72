//! Errors of communication between ranks, with the reporting rank, the call, and the peer.

use std::time::Duration;

use device::DeviceError;
use tensor::TensorError;

use crate::call::{Call, Signature};

/// Result of a collective.
pub type Result<T> = std::result::Result<T, CollectiveError>;

/// A rank that failed, and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Number in the world.
    pub rank: usize,
    /// The reason that the rank gave.
    pub reason: String,
}

/// A failed collective. Ranks are world numbers, also for calls in a smaller group.
#[derive(Debug, thiserror::Error)]
pub enum CollectiveError {
    /// Ranks, coordinates or axes that a grid does not have.
    #[error("{0}")]
    Grid(String),
    /// A tensor that a sum over ranks reads or writes failed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A rank ended, so no call can complete any more.
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
    /// A rank gave no sign of life within the timeout.
    #[error("rank {rank}, {call}: rank {peer} did not answer within {:.1} s", waited.as_secs_f64())]
    Timeout {
        /// Rank that was waiting.
        rank: usize,
        /// The operation.
        call: Call,
        /// Rank that was waited for.
        peer: usize,
        /// Duration of the wait.
        waited: Duration,
    },
    /// Work of several ranks was not done within the timeout, and no rank is known to have failed.
    #[error(
        "rank {rank}, {call}: it was not done within {:.1} s, and no rank is known to have failed",
        waited.as_secs_f64()
    )]
    Stalled {
        /// Rank that was waiting.
        rank: usize,
        /// The operation.
        call: Call,
        /// Duration of the wait.
        waited: Duration,
    },
    /// Two ranks are in different calls, or in the same call with different operands.
    #[error("rank {rank} is in {mine}, but rank {peer} is in {theirs}")]
    Mismatch {
        /// Rank that detected it.
        rank: usize,
        /// The call of that rank.
        mine: Box<Signature>,
        /// The other rank.
        peer: usize,
        /// The call of the other rank.
        theirs: Box<Signature>,
    },
    /// An operand that no transport supports.
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
        /// The device's error.
        #[source]
        source: Box<DeviceError>,
    },
    /// The library that the transport uses failed.
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
