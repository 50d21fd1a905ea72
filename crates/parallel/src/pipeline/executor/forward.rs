//! Action lists that run micro-batches one after another: forward passes only for validation, or both
//! directions.

use std::ops::Range;

use crate::pipeline::action::{Action, ActionKind};
use crate::pipeline::schedule::Schedule;

/// Returns the forward actions of a rank: every micro-batch passes through the rank's stages, first to last,
/// before the next one. All ranks order transfers by micro-batch, then by stage.
pub(super) fn actions(schedule: &Schedule, rank: usize, micro_batches: Range<usize>) -> Vec<Action> {
    let mut actions = Vec::new();
    for micro_batch in micro_batches {
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

/// Returns the actions of a rank for one micro-batch: forward through its stages, first to last, then
/// backward, last to first.
pub(super) fn both_directions(schedule: &Schedule, rank: usize, micro_batch: usize) -> Vec<Action> {
    let of_micro_batch = |stage, kind| Action::new(stage, kind, micro_batch);
    let forward = [ActionKind::ReceiveForward, ActionKind::Forward, ActionKind::SendForward];
    let backward = [ActionKind::ReceiveBackward, ActionKind::Backward, ActionKind::SendBackward];
    let stages: Vec<_> = schedule.stages_of(rank).collect();
    let first = stages.iter().flat_map(|stage| forward.map(|kind| of_micro_batch(*stage, kind)));
    let then = stages.iter().rev().flat_map(|stage| backward.map(|kind| of_micro_batch(*stage, kind)));
    let happens = |action: &Action| action.kind.is_compute() || schedule.peer(*action).is_some();
    first.chain(then).filter(happens).collect()
}
