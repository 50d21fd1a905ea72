//! Errors of schedules, each with the rank and the index in its list.

use std::fmt;

use crate::pipeline::action::Action;
use crate::pipeline::kind::ScheduleKind;

/// Result of a function on schedules.
pub type Result<T> = std::result::Result<T, ScheduleError>;

/// A rank that waits forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// The rank.
    pub rank: usize,
    /// Index into the rank's list.
    pub index: usize,
    /// The action that never completes.
    pub action: Action,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} waits at index {}: {}", self.rank, self.index, self.action)
    }
}

/// The reason why a schedule is invalid. An index is the position of an action in the rank's list, from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "messages name their fields")]
pub enum ScheduleError {
    /// This kind of schedule does not support these numbers of ranks, stages and micro-batches.
    #[error("{kind}: {reason}")]
    Shape { kind: ScheduleKind, reason: String },
    /// Times are listed for another number of stages.
    #[error("times are listed for {listed} stages, the schedule has {stages}")]
    Times { listed: usize, stages: usize },
    /// The stage or micro-batch does not exist, or a transfer is between stages of one rank.
    #[error("rank {rank}, index {index}: {action}: there is no such action in this schedule")]
    Unknown { rank: usize, index: usize, action: Action },
    /// The action's stage is on another rank.
    #[error("rank {rank}, index {index}: {action}: that stage is on rank {home}")]
    WrongRank { rank: usize, index: usize, action: Action, home: usize },
    /// The action is listed twice.
    #[error("rank {rank}, index {index}: {action}: it is done already")]
    Twice { rank: usize, index: usize, action: Action },
    /// The action is listed before its input.
    #[error("rank {rank}, index {index}: {action}: it needs {needs} first")]
    TooEarly { rank: usize, index: usize, action: Action, needs: Action },
    /// The action is not listed.
    #[error("rank {rank}: {action}: it is missing")]
    Missing { rank: usize, action: Action },
    /// A stage's backward passes are not in micro-batch order, which would change the order of adding
    /// gradients.
    #[error("rank {rank}, index {index}: {action}: it comes after that of micro-batch {after}")]
    OutOfOrder {
        rank: usize,
        index: usize,
        action: Action,
        /// The later micro-batch whose pass is listed first.
        after: usize,
    },
    /// A send does not match the peer's next receive.
    #[error(
        "rank {from}, index {sent_at}: {sent}: rank {to} then receives something else, \
         at index {received_at}: {received}"
    )]
    Unmatched { from: usize, to: usize, sent_at: usize, sent: Action, received_at: usize, received: Action },
    /// More micro-batches are in flight than this kind of schedule allows.
    #[error("rank {rank}, index {index}: {action}: {held} micro-batches are held, the bound is {bound}")]
    TooMany {
        rank: usize,
        index: usize,
        action: Action,
        /// Micro-batches held during the action.
        held: usize,
        /// Maximum for this kind of schedule.
        bound: usize,
    },
    /// Ranks wait for each other forever.
    #[error("deadlock: {}", .0.iter().map(Stuck::to_string).collect::<Vec<_>>().join("; "))]
    Deadlock(Vec<Stuck>),
}
