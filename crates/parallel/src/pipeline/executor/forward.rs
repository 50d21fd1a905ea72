//! Lists of forward passes only, for validation.

use crate::pipeline::action::{Action, ActionKind};
use crate::pipeline::schedule::Schedule;

/// Returns the actions of a rank in order: every micro-batch passes through its stages, first to last, before
/// the next one. All ranks agree on one order of transfers: by micro-batch, then by stage.
pub(super) fn actions(schedule: &Schedule, rank: usize, micro_batches: usize) -> Vec<Action> {
    let mut actions = Vec::new();
    for micro_batch in 0..micro_batches {
        for stage in schedule.stages_of(rank) {
            for kind in [ActionKind::ReceiveForward, ActionKind::Forward, ActionKind::SendForward] {
                let action = Action::new(stage, kind, micro_batch);
                if kind == ActionKind::Forward || schedule.peer(action).is_some() {
                    actions.push(action);
                }
            }
        }
    }
    actions
}
