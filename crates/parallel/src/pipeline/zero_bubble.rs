//! ZB-H1: 1F1B that computes weight gradients when a rank would otherwise be idle.
//!
//! Qi, Wan, Huang and Lin, *Zero Bubble Pipeline Parallelism*, 2023, section 2. Only the gradient of a
//! stage's input is urgent, because the previous stage waits for it. Forward and input-backward passes keep
//! 1F1B's order. The weight half of a micro-batch on stage i runs i micro-batches later, and fills idle time
//! at the end. A stage holds at most 1F1B's p − i activations; including micro-batches whose weight half is
//! due, at most p, like the first stage of 1F1B. With equal times and at least 2 p micro-batches, ranks are
//! idle a third as long as under 1F1B.

use crate::pipeline::action::{Action, ActionKind};

/// Returns the passes of a stage, in order.
pub(crate) fn order(stages: usize, stage: usize, micro_batches: usize) -> Vec<Action> {
    let warm_up = (stages - 1 - stage).min(micro_batches);
    let mut actions: Vec<_> = (0..warm_up).map(|k| Action::new(stage, ActionKind::Forward, k)).collect();
    for micro_batch in 0..micro_batches {
        if warm_up + micro_batch < micro_batches {
            actions.push(Action::new(stage, ActionKind::Forward, warm_up + micro_batch));
        }
        actions.push(Action::new(stage, ActionKind::BackwardInput, micro_batch));
        if let Some(due) = micro_batch.checked_sub(stage) {
            actions.push(Action::new(stage, ActionKind::BackwardWeight, due));
        }
    }
    let left = micro_batches.saturating_sub(stage)..micro_batches;
    actions.extend(left.map(|k| Action::new(stage, ActionKind::BackwardWeight, k)));
    actions
}
