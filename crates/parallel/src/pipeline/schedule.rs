//! Schedules: the actions of every rank, in order.

use crate::pipeline::action::{Action, ActionKind};
use crate::pipeline::kind::ScheduleKind;
use crate::pipeline::layout::StageLayout;

/// The actions of every rank of a pipeline in one step, in order.
///
/// A rank's list is the order in which its host enqueues: compute on one stream, transfers on another, each
/// waiting only for its inputs. All transfers of all ranks follow one global order, consistent with the
/// passes around them. They may therefore run one by one with blocking sends, and any two ranks see their
/// common transfers in the same order. With equal stages, one transfer stream per rank costs no time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Kind of the schedule.
    pub kind: ScheduleKind,
    /// Number of pipeline ranks.
    pub ranks: usize,
    /// Number of stages (model chunks) on all ranks, assigned by [`StageLayout`].
    pub stages: usize,
    /// Number of micro-batches in a step.
    pub micro_batches: usize,
    /// Actions by rank.
    pub actions: Vec<Vec<Action>>,
}

impl Schedule {
    /// The assignment of stages to ranks.
    pub fn layout(&self) -> StageLayout {
        StageLayout { ranks: self.ranks, stages: self.stages }
    }

    /// Returns the rank that holds a stage.
    pub fn rank_of(&self, stage: usize) -> usize {
        self.layout().rank_of(stage)
    }

    /// Returns the stages of a rank, first to last.
    pub fn stages_of(&self, rank: usize) -> impl Iterator<Item = usize> {
        self.layout().stages_of(rank)
    }

    /// Number of stages per rank.
    pub fn chunks(&self) -> usize {
        self.layout().chunks()
    }

    /// Returns the stage at the other end of a transfer; `None` for a pass, and at the model's ends.
    pub fn other_stage(&self, action: Action) -> Option<usize> {
        match action.kind {
            ActionKind::SendForward | ActionKind::ReceiveBackward => {
                Some(action.stage + 1).filter(|stage| *stage < self.stages)
            }
            ActionKind::ReceiveForward | ActionKind::SendBackward => action.stage.checked_sub(1),
            _ => None,
        }
    }

    /// Returns the rank at the other end of a transfer; `None` for a pass, or if both stages are on one rank.
    pub fn peer(&self, action: Action) -> Option<usize> {
        let peer = self.rank_of(self.other_stage(action)?);
        (peer != self.rank_of(action.stage)).then_some(peer)
    }
}
