//! Errors of schedules, each with the rank and the place in its list.

use std::fmt;

use crate::pipeline::action::Action;
use crate::pipeline::kind::ScheduleKind;

/// Result of a call on schedules.
pub type Result<T> = std::result::Result<T, ScheduleError>;

/// A rank that waits for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// The rank.
    pub rank: usize,
    /// Index into the rank's list.
    pub place: usize,
    /// The action that never completes.
    pub action: Action,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} waits at place {}: {}", self.rank, self.place, self.action)
    }
}

/// A refused or unsound schedule. A place is an index into the rank's list, from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// Numbers of ranks, stages and micro-batches that this kind cannot schedule.
    #[error("{kind}: {reason}")]
    Shape {
        /// The kind asked for.
        kind: ScheduleKind,
        /// Why it is refused.
        reason: String,
    },
    /// Times for another number of stages.
    #[error("times are given for {given} stages, the schedule has {stages}")]
    Times {
        /// Stages that times are given for.
        given: usize,
        /// Stages of the schedule.
        stages: usize,
    },
    /// A stage or micro-batch that does not exist, or a transfer where nothing is transferred.
    #[error("rank {rank}, place {place}: {action}: there is no such action in this schedule")]
    Unknown {
        /// The rank.
        rank: usize,
        /// Index into its list.
        place: usize,
        /// The action there.
        action: Action,
    },
    /// An action of a stage that another rank holds.
    #[error("rank {rank}, place {place}: {action}: that stage is on rank {home}")]
    WrongRank {
        /// The rank.
        rank: usize,
        /// Index into its list.
        place: usize,
        /// The action there.
        action: Action,
        /// The rank that holds the stage.
        home: usize,
    },
    /// An action that is done a second time.
    #[error("rank {rank}, place {place}: {action}: it is done already")]
    Twice {
        /// The rank.
        rank: usize,
        /// Index into its list.
        place: usize,
        /// The action there.
        action: Action,
    },
    /// An action that comes before what it needs.
    #[error("rank {rank}, place {place}: {action}: it needs {needs} first")]
    TooEarly {
        /// The rank.
        rank: usize,
        /// Index into its list.
        place: usize,
        /// The action there.
        action: Action,
        /// The action that must come before.
        needs: Action,
    },
    /// An action that is never done.
    #[error("rank {rank}: {action}: it is missing")]
    Missing {
        /// The rank.
        rank: usize,
        /// The missing action.
        action: Action,
    },
    /// A stage's backward passes out of micro-batch order: gradients would add up in another order.
    #[error("rank {rank}, place {place}: {action}: it comes after that of micro-batch {after}")]
    OutOfOrder {
        /// The rank.
        rank: usize,
        /// Index into its list.
        place: usize,
        /// The action there.
        action: Action,
        /// The later micro-batch that came before.
        after: usize,
    },
    /// A send whose receiver expects another tensor.
    #[error(
        "rank {from}, place {sent_at}: {sent}: rank {to} then receives something else, \
         at place {received_at}: {received}"
    )]
    Unmatched {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
        /// Index into the sender's list.
        sent_at: usize,
        /// The send.
        sent: Action,
        /// Index into the receiver's list.
        received_at: usize,
        /// The receive.
        received: Action,
    },
    /// More micro-batches in flight than the schedule's kind may hold.
    #[error("rank {rank}, place {place}: {action}: {held} micro-batches are held, the bound is {bound}")]
    TooMany {
        /// The rank.
        rank: usize,
        /// Index into its list.
        place: usize,
        /// The action there.
        action: Action,
        /// Micro-batches held at that place.
        held: usize,
        /// The most that the kind may hold.
        bound: usize,
    },
    /// Ranks that wait for each other for ever.
    #[error("deadlock: {}", .0.iter().map(Stuck::to_string).collect::<Vec<_>>().join("; "))]
    Deadlock(Vec<Stuck>),
}
