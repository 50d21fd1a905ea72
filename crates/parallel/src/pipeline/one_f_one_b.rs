//! 1F1B: the fewest micro-batches in flight that keep every stage busy.
//!
//! Narayanan and others, *Memory-Efficient Pipeline-Parallel DNN Training* (PipeDream-Flush), 2021: stage i
//! of p runs p − 1 − i forward passes, then alternates one forward and one backward, then runs the remaining
//! backward passes. Its bubble equals GPipe's, and it holds at most p − i micro-batches.

use crate::pipeline::action::{Action, ActionKind};

/// Returns the passes of a stage, in order.
pub(crate) fn order(stages: usize, stage: usize, micro_batches: usize) -> Vec<Action> {
    let warm_up = (stages - 1 - stage).min(micro_batches);
    let mut actions: Vec<_> = (0..warm_up).map(|k| Action::new(stage, ActionKind::Forward, k)).collect();
    for micro_batch in 0..micro_batches {
        if warm_up + micro_batch < micro_batches {
            actions.push(Action::new(stage, ActionKind::Forward, warm_up + micro_batch));
        }
        actions.push(Action::new(stage, ActionKind::Backward, micro_batch));
    }
    actions
}
