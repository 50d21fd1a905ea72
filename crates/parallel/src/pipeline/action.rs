//! Actions: the entries of a schedule.

use std::fmt;

/// The kind of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ActionKind {
    /// Computes the stage's output from its input; in the last stage, the loss.
    Forward,
    /// Computes the gradient of the input from the gradient of the output, and keeps the tensors needed for
    /// weight gradients.
    BackwardInput,
    /// Computes the weight gradients from the tensors that `BackwardInput` saved.
    BackwardWeight,
    /// Runs `BackwardInput` and `BackwardWeight` as one action.
    Backward,
    /// Sends the stage's output to the rank of the next stage.
    SendForward,
    /// Receives the stage's input from the rank of the previous stage.
    ReceiveForward,
    /// Sends the gradient of the stage's input to the rank of the previous stage.
    SendBackward,
    /// Receives the gradient of the stage's output from the rank of the next stage.
    ReceiveBackward,
}

impl ActionKind {
    /// Returns whether the action is a send or a receive.
    pub fn is_transfer(self) -> bool {
        self.is_send() || self.is_receive()
    }

    /// Returns whether the action is a send.
    pub fn is_send(self) -> bool {
        matches!(self, ActionKind::SendForward | ActionKind::SendBackward)
    }

    /// Returns whether the action is a receive.
    pub fn is_receive(self) -> bool {
        matches!(self, ActionKind::ReceiveForward | ActionKind::ReceiveBackward)
    }

    /// Returns whether the action runs on the compute stream.
    pub fn is_compute(self) -> bool {
        !self.is_transfer()
    }
}

/// One entry of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Action {
    /// Stage (model chunk) of the action, from 0.
    pub stage: usize,
    /// Kind of the action.
    pub kind: ActionKind,
    /// Micro-batch of the action, from 0.
    pub micro_batch: usize,
}

impl Action {
    /// Creates an action.
    pub fn new(stage: usize, kind: ActionKind, micro_batch: usize) -> Self {
        Action { stage, kind, micro_batch }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of micro-batch {} in stage {}", self.kind, self.micro_batch, self.stage)
    }
}
