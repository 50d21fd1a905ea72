//! A schedule: the actions of every rank, in order.

use crate::pipeline::action::{Action, ActionKind};
use crate::pipeline::kind::ScheduleKind;
use crate::pipeline::layout::StageLayout;

/// The actions of every rank of a pipeline in one step, in order.
///
/// A rank's list is the order in which its host enqueues: compute on one stream, transfers on another, each
/// waiting only for what it needs. All transfers of all ranks follow one global order, which agrees with the
/// order of the passes around them: they may be run one by one with sends that wait for their receives, and
/// any two ranks see the transfers between them in the same order. With equal stages, one transfer stream per
/// rank costs no time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The kind.
    pub kind: ScheduleKind,
    /// Ranks of the pipeline.
    pub ranks: usize,
    /// Stages (model chunks) of all ranks, laid out as [`StageLayout`] says.
    pub stages: usize,
    /// Micro-batches in a step.
    pub micro_batches: usize,
    /// Actions by rank.
    pub actions: Vec<Vec<Action>>,
}

impl Schedule {
    /// The ranks that hold the stages.
    pub fn layout(&self) -> StageLayout {
        StageLayout { ranks: self.ranks, stages: self.stages }
    }

    /// The rank that holds a stage.
    pub fn rank_of(&self, stage: usize) -> usize {
        self.layout().rank_of(stage)
    }

    /// The stages of a rank, first to last.
    pub fn stages_of(&self, rank: usize) -> impl Iterator<Item = usize> {
        self.layout().stages_of(rank)
    }

    /// Stages per rank.
    pub fn chunks(&self) -> usize {
        self.layout().chunks()
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

    /// The rank at the other end of a transfer; `None` for other actions, and where both stages are on one
    /// rank.
    pub fn peer(&self, action: Action) -> Option<usize> {
        let peer = self.rank_of(self.other_stage(action)?);
        (peer != self.rank_of(action.stage)).then_some(peer)
    }
}
