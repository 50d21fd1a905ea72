//! Errors of communication between ranks, with the reporting rank, the call, and the peer.

use std::time::Duration;

use device::DeviceError;
use tensor::TensorError;

use crate::call::{Call, Signature};

/// Result of a collective.
pub type Result<T> = std::result::Result<T, CollectiveError>;

/// A failed rank and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Number in the world.
    pub rank: usize,
    /// Reason reported by the rank.
    pub reason: String,
}

/// Error of a collective. Ranks are world numbers, also for calls in a smaller group.
#[derive(Debug, thiserror::Error)]
pub enum CollectiveError {
    /// Ranks, coordinates or axes outside the grid.
    #[error("{0}")]
    Grid(String),
    /// A tensor operation on a collective's operands or result failed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// Another rank failed or ended, so that no call can complete any more.
    #[error("rank {rank}, {call}: rank {peer} failed: {reason}")]
    PeerFailed {
        /// Rank that reports the error.
        rank: usize,
        /// The call in progress.
        call: Call,
        /// Rank that failed.
        peer: usize,
        /// The peer's reason.
        reason: String,
    },
    /// A peer gave no sign of life within the timeout.
    #[error("rank {rank}, {call}: rank {peer} did not answer within {:.1} s", waited.as_secs_f64())]
    Timeout {
        /// Rank that was waiting.
        rank: usize,
        /// The call in progress.
        call: Call,
        /// Rank that did not answer.
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
        /// The call in progress.
        call: Call,
        /// Duration of the wait.
        waited: Duration,
    },
    /// Two ranks are in different calls, or in the same call with different operands.
    #[error("rank {rank} is in {mine}, but rank {peer} is in {theirs}")]
    Mismatch {
        /// Rank that detected the mismatch.
        rank: usize,
        /// Call of the detecting rank.
        mine: Box<Signature>,
        /// The other rank.
        peer: usize,
        /// Call of the other rank.
        theirs: Box<Signature>,
    },
    /// An invalid operand.
    #[error("rank {rank}, {call}: {problem}")]
    Operand {
        /// Rank that called.
        rank: usize,
        /// The call.
        call: Call,
        /// Description of the problem.
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
    /// The transport's library failed.
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
        /// The library's error message.
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
