//! What is wrong with a schedule, and where.

use crate::pipeline::action::Action;
use crate::pipeline::deadlock::Stuck;
use crate::pipeline::schedule::ScheduleKind;

/// Result of a call on schedules.
pub type Result<T> = std::result::Result<T, ScheduleError>;

/// A refused or unsound schedule. A place is an index into the rank's list, from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// Numbers of ranks, stages and micro-batches that this kind cannot schedule.
    #[error("{kind}: {reason}")]
    Shape {
        /// Which kind was asked for.
        kind: ScheduleKind,
        /// Why not.
        reason: String,
    },
    /// A name that is no schedule's.
    #[error("{0:?} is not a schedule: there are gpipe, 1f1b, interleaved and zero-bubble")]
    UnknownKind(String),
    /// Times for another number of stages.
    #[error("times are given for {given} stages, the schedule has {stages}")]
    Times {
        /// Stages that times are given for.
        given: usize,
        /// Stages there are.
        stages: usize,
    },
    /// A stage or micro-batch that does not exist, or a transfer where nothing is transferred.
    #[error("rank {rank}, place {place}: {action}: there is no such thing to do")]
    Unknown {
        /// On which rank.
        rank: usize,
        /// Where in its list.
        place: usize,
        /// What stands there.
        action: Action,
    },
    /// An action of a stage that another rank holds.
    #[error("rank {rank}, place {place}: {action}: that stage is on rank {home}")]
    WrongRank {
        /// On which rank.
        rank: usize,
        /// Where in its list.
        place: usize,
        /// What stands there.
        action: Action,
        /// Where the stage is.
        home: usize,
    },
    /// Something done a second time.
    #[error("rank {rank}, place {place}: {action}: it is done already")]
    Twice {
        /// On which rank.
        rank: usize,
        /// Where in its list.
        place: usize,
        /// What stands there.
        action: Action,
    },
    /// Something done before what it needs.
    #[error("rank {rank}, place {place}: {action}: it needs {needs} first")]
    TooEarly {
        /// On which rank.
        rank: usize,
        /// Where in its list.
        place: usize,
        /// What stands there.
        action: Action,
        /// What must come before.
        needs: Action,
    },
    /// Something that is never done.
    #[error("rank {rank}: {action}: it is missing")]
    Missing {
        /// On which rank.
        rank: usize,
        /// What is missing.
        action: Action,
    },
    /// A stage's backward passes out of micro-batch order: gradients would add up in another order.
    #[error("rank {rank}, place {place}: {action}: it comes after that of micro-batch {after}")]
    OutOfOrder {
        /// On which rank.
        rank: usize,
        /// Where in its list.
        place: usize,
        /// What stands there.
        action: Action,
        /// The later micro-batch that has been there.
        after: usize,
    },
    /// What one rank sends to another is received in another order.
    #[error(
        "rank {from}, place {sent_at}: {sent}: rank {to} then receives something else, at place {received_at}: \
         {received}"
    )]
    Unmatched {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
        /// Where in the sender's list.
        sent_at: usize,
        /// What is sent.
        sent: Action,
        /// Where in the receiver's list.
        received_at: usize,
        /// What is received there.
        received: Action,
    },
    /// More micro-batches in flight than the schedule's kind may hold.
    #[error("rank {rank}, place {place}: {action}: {held} micro-batches are held, the bound is {bound}")]
    TooMany {
        /// On which rank.
        rank: usize,
        /// Where in its list.
        place: usize,
        /// What stands there.
        action: Action,
        /// How many micro-batches are held then.
        held: usize,
        /// How many may be.
        bound: usize,
    },
    /// Ranks that wait for each other for ever.
    #[error("deadlock: {}", .0.iter().map(Stuck::to_string).collect::<Vec<_>>().join("; "))]
    Deadlock(Vec<Stuck>),
}
