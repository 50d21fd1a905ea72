//! Loads: micro-batches in flight (activations, tensors kept for weight gradients, and received tensors) at
//! each index of a schedule.

use crate::pipeline::action::{Action, ActionKind};
use crate::pipeline::schedule::Schedule;

/// Numbers of micro-batches whose tensors are held in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Held {
    /// Micro-batches with activations, from the forward pass to the end of the backward pass or of its input
    /// half.
    pub activations: usize,
    /// Micro-batches with tensors kept for weight gradients, from the end of `BackwardInput` to the end of
    /// `BackwardWeight`.
    pub weights: usize,
    /// Micro-batches whose input was received ahead, from the receive to the forward pass; the input then
    /// counts as an activation.
    pub received_forward: usize,
    /// Micro-batches whose output gradient was received ahead, from the receive to the backward pass that
    /// consumes it.
    pub received_backward: usize,
}

impl Held {
    /// Returns the elementwise maximum.
    pub fn max(self, other: Held) -> Held {
        Held {
            activations: self.activations.max(other.activations),
            weights: self.weights.max(other.weights),
            received_forward: self.received_forward.max(other.received_forward),
            received_backward: self.received_backward.max(other.received_backward),
        }
    }

    fn covers(self, other: Held) -> bool {
        self.max(other) == self
    }

    /// Returns the numbers held during an action, and after it.
    fn step(mut self, action: Action, received: bool) -> (Held, Held) {
        let received = usize::from(received);
        match action.kind {
            ActionKind::Forward => {
                self.received_forward -= received;
                self.activations += 1;
            }
            ActionKind::ReceiveForward => self.received_forward += 1,
            ActionKind::ReceiveBackward => self.received_backward += 1,
            ActionKind::Backward | ActionKind::BackwardInput => self.received_backward -= received,
            _ => {}
        }
        let mut after = self;
        match action.kind {
            ActionKind::Backward => after.activations -= 1,
            ActionKind::BackwardInput => {
                after.activations -= 1;
                after.weights += 1;
            }
            ActionKind::BackwardWeight => after.weights -= 1,
            _ => {}
        }
        (self, after)
    }
}

/// Micro-batches that a stage or rank holds at each index of the rank's list. The host enqueues and allocates
/// in list order, so the numbers are exact for passes of any duration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Numbers held during the action at each index.
    pub during: Vec<Held>,
    /// The elementwise maximum over all indices.
    pub peak: Held,
}

impl Load {
    /// Returns the maximal (activations, weight halves) pairs held at once: no other pair is at least as
    /// large in both. For any sizes a and w, `activations × a + weights × w` is largest at one of them.
    pub fn levels(&self) -> Vec<Held> {
        let only =
            |held: &Held| Held { activations: held.activations, weights: held.weights, ..Held::default() };
        let mut levels: Vec<Held> = Vec::new();
        for held in self.during.iter().map(only) {
            if !levels.iter().any(|level| level.covers(held)) {
                levels.retain(|level| !held.covers(*level));
                levels.push(held);
            }
        }
        levels
    }

    fn push(&mut self, held: Held) {
        self.during.push(held);
        self.peak = self.peak.max(held);
    }
}

/// Micro-batches held by the stages and ranks of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loads {
    /// Load of each stage, over the indices of its rank's list.
    pub stages: Vec<Load>,
    /// Load of each rank, the sum over its stages.
    pub ranks: Vec<Load>,
}

/// Computes the micro-batches held by the stages and ranks of a valid schedule.
pub fn loads(schedule: &Schedule) -> Loads {
    let mut stages = vec![Load::default(); schedule.stages];
    let mut ranks = vec![Load::default(); schedule.ranks];
    for (rank, actions) in schedule.actions.iter().enumerate() {
        let mut now = vec![Held::default(); schedule.stages];
        for action in actions {
            let (during, after) = now[action.stage].step(*action, is_received(schedule, *action));
            now[action.stage] = during;
            let mut sum = Held::default();
            for stage in schedule.stages_of(rank) {
                stages[stage].push(now[stage]);
                sum = add(sum, now[stage]);
            }
            ranks[rank].push(sum);
            now[action.stage] = after;
        }
    }
    Loads { stages, ranks }
}

/// Returns whether the input of a pass comes from another rank.
fn is_received(schedule: &Schedule, action: Action) -> bool {
    let receive = match action.kind {
        ActionKind::Forward => ActionKind::ReceiveForward,
        ActionKind::Backward | ActionKind::BackwardInput => ActionKind::ReceiveBackward,
        _ => return false,
    };
    schedule.peer(Action { kind: receive, ..action }).is_some()
}

fn add(a: Held, b: Held) -> Held {
    Held {
        activations: a.activations + b.activations,
        weights: a.weights + b.weights,
        received_forward: a.received_forward + b.received_forward,
        received_backward: a.received_backward + b.received_backward,
    }
}
