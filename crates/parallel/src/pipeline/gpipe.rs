//! GPipe: all forward passes, then all backward passes.
//!
//! Huang and others, *GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism*, 2019.
//! The paper runs backward last-in-first-out; here backward is first-in-first-out, as in all other schedules.

use crate::pipeline::action::{Action, ActionKind};

/// Returns the passes of a stage, in order.
pub(crate) fn order(stage: usize, micro_batches: usize) -> Vec<Action> {
    let all = |kind| (0..micro_batches).map(move |micro_batch| Action::new(stage, kind, micro_batch));
    all(ActionKind::Forward).chain(all(ActionKind::Backward)).collect()
}
