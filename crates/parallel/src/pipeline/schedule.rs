//! A schedule: what every rank does, in order.

use std::fmt;
use std::str::FromStr;

use crate::pipeline::action::{Action, ActionKind};
use crate::pipeline::error::{Result, ScheduleError};
use crate::pipeline::{communication, gpipe, interleaved, one_f_one_b, zero_bubble};

/// The schedules there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScheduleKind {
    /// All forward passes, then all backward passes (Huang and others, *GPipe*, 2019), here first-in-first-out.
    GPipe,
    /// One forward, one backward (Narayanan and others, *PipeDream-Flush*, 2021).
    OneForwardOneBackward,
    /// The same with several model chunks per rank (Narayanan and others, *Megatron-LM*, 2021).
    Interleaved,
    /// ZB-H1 (Qi and others, *Zero Bubble Pipeline Parallelism*, 2023).
    ZeroBubble,
}

impl ScheduleKind {
    /// All of them.
    pub const ALL: [ScheduleKind; 4] = [
        ScheduleKind::GPipe,
        ScheduleKind::OneForwardOneBackward,
        ScheduleKind::Interleaved,
        ScheduleKind::ZeroBubble,
    ];

    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            ScheduleKind::GPipe => "gpipe",
            ScheduleKind::OneForwardOneBackward => "1f1b",
            ScheduleKind::Interleaved => "interleaved",
            ScheduleKind::ZeroBubble => "zero-bubble",
        }
    }
}

impl fmt::Display for ScheduleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ScheduleKind {
    type Err = ScheduleError;

    fn from_str(name: &str) -> Result<Self> {
        let found = ScheduleKind::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| ScheduleError::UnknownKind(name.to_owned()))
    }
}

/// What is to be scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Ranks of the pipeline.
    pub ranks: usize,
    /// Stages (model chunks) per rank; 1 but for the interleaved schedule.
    pub chunks: usize,
    /// Micro-batches that the pipeline runs in a step.
    pub micro_batches: usize,
}

/// What every rank does in a step, in order.
///
/// A rank's list is the order in which its host enqueues: compute on one stream, transfers on another, each waiting
/// only for what it needs. All transfers of all ranks follow one global order, which agrees with the order of the
/// computing around them: they may be run one by one with sends that wait for their receives, and any two ranks see
/// those between them in the same order. With equal stages, one transfer stream per rank then costs no time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Its kind.
    pub kind: ScheduleKind,
    /// Ranks of the pipeline.
    pub ranks: usize,
    /// Stages (model chunks) in all; stage s is on rank s modulo `ranks`.
    pub stages: usize,
    /// Micro-batches in a step.
    pub micro_batches: usize,
    /// What to do, by rank.
    pub actions: Vec<Vec<Action>>,
}

impl Schedule {
    /// The schedule of a kind. Errors: a shape with nothing in it, several chunks where the kind is not interleaved,
    /// or an interleaved one whose micro-batches are not a multiple of its ranks.
    pub fn new(kind: ScheduleKind, shape: Shape) -> Result<Self> {
        Self::check(kind, shape)?;
        let Shape { ranks, chunks, micro_batches } = shape;
        let order = |rank| match kind {
            ScheduleKind::GPipe => gpipe::order(rank, micro_batches),
            ScheduleKind::OneForwardOneBackward => one_f_one_b::order(ranks, rank, micro_batches),
            ScheduleKind::Interleaved => interleaved::order(shape, rank),
            ScheduleKind::ZeroBubble => zero_bubble::order(ranks, rank, micro_batches),
        };
        let actions = (0..ranks).map(order).collect();
        let mut schedule = Schedule { kind, ranks, stages: ranks * chunks, micro_batches, actions };
        schedule.actions = communication::weave(&schedule);
        Ok(schedule)
    }

    /// Whether there is a schedule of this kind and shape, without making it. Errors: as for [`Schedule::new`].
    pub fn check(kind: ScheduleKind, shape: Shape) -> Result<()> {
        let Shape { ranks, chunks, micro_batches } = shape;
        let refuse = |reason: String| Err(ScheduleError::Shape { kind, reason });
        if ranks == 0 || chunks == 0 || micro_batches == 0 {
            return refuse(format!(
                "{ranks} ranks with {chunks} stages each and {micro_batches} micro-batches: there is nothing to schedule"
            ));
        }
        match kind {
            ScheduleKind::Interleaved if !micro_batches.is_multiple_of(ranks) => {
                refuse(format!("{micro_batches} micro-batches are not a multiple of {ranks} ranks"))
            }
            ScheduleKind::Interleaved => Ok(()),
            _ if chunks > 1 => {
                refuse(format!("{chunks} stages per rank: only interleaved has more than one"))
            }
            _ => Ok(()),
        }
    }

    /// The rank that holds a stage.
    pub fn rank_of(&self, stage: usize) -> usize {
        stage % self.ranks
    }

    /// The stages of a rank, first to last.
    pub fn stages_of(&self, rank: usize) -> impl Iterator<Item = usize> {
        (rank..self.stages).step_by(self.ranks)
    }

    /// Stages per rank.
    pub fn chunks(&self) -> usize {
        self.stages / self.ranks
    }

    /// The stage at the other end of a transfer; `None` for other actions, or at the model's ends.
    pub fn other_stage(&self, action: Action) -> Option<usize> {
        match action.kind {
            ActionKind::SendForward | ActionKind::ReceiveBackward => {
                Some(action.stage + 1).filter(|stage| *stage < self.stages)
            }
            ActionKind::ReceiveForward | ActionKind::SendBackward => action.stage.checked_sub(1),
            _ => None,
        }
    }

    /// The rank at the other end of a transfer; `None` for other actions, and where both stages are on one rank.
    pub fn peer(&self, action: Action) -> Option<usize> {
        let peer = self.rank_of(self.other_stage(action)?);
        (peer != self.rank_of(action.stage)).then_some(peer)
    }
}
