//! What a rank does in one place of a schedule.

use std::fmt;

/// A kind of action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ActionKind {
    /// From the stage's input to its output (in the last stage: to the loss).
    Forward,
    /// From the gradient of the output to that of the input; what the weights' gradients need is kept.
    BackwardInput,
    /// The gradients of the weights, from what `BackwardInput` kept.
    BackwardWeight,
    /// `BackwardInput` and then `BackwardWeight`, as one.
    Backward,
    /// The stage's output to the next stage's rank.
    SendForward,
    /// The stage's input from the rank of the stage before.
    ReceiveForward,
    /// The gradient of the stage's input to the rank of the stage before.
    SendBackward,
    /// The gradient of the stage's output from the next stage's rank.
    ReceiveBackward,
    /// The stage's gradients over data-parallel ranks, when its last micro-batch is in them.
    Reduce,
}

impl ActionKind {
    /// Whether it goes over the wire between stages.
    pub fn is_transfer(self) -> bool {
        self.is_send() || self.is_receive()
    }

    /// Whether it gives a tensor to another rank.
    pub fn is_send(self) -> bool {
        matches!(self, ActionKind::SendForward | ActionKind::SendBackward)
    }

    /// Whether it takes a tensor from another rank.
    pub fn is_receive(self) -> bool {
        matches!(self, ActionKind::ReceiveForward | ActionKind::ReceiveBackward)
    }

    /// Whether it keeps the compute stream busy.
    pub fn is_compute(self) -> bool {
        !self.is_transfer() && self != ActionKind::Reduce
    }
}

/// One entry of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Action {
    /// Which stage (model chunk) it belongs to.
    pub stage: usize,
    /// What is done.
    pub kind: ActionKind,
    /// For which micro-batch, from 0; that of `Reduce` is the last.
    pub micro_batch: usize,
}

impl Action {
    /// An action.
    pub fn new(stage: usize, kind: ActionKind, micro_batch: usize) -> Self {
        Action { stage, kind, micro_batch }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of micro-batch {} in stage {}", self.kind, self.micro_batch, self.stage)
    }
}
