//! Validation of schedules.

use crate::pipeline::action::{Action, ActionKind};
use crate::pipeline::deadlock::{Sends, deadlock};
use crate::pipeline::error::{Result, ScheduleError, Stuck};
use crate::pipeline::interleaved;
use crate::pipeline::kind::ScheduleKind;
use crate::pipeline::load::{Held, Loads, loads};
use crate::pipeline::schedule::Schedule;
use crate::pipeline::shape::Shape;

/// Properties of a valid schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Ranks that would wait forever if sends blocked until their receives; empty for generated schedules.
    pub rendezvous: Vec<Stuck>,
    /// Whether any two ranks have their common transfers of both directions in the same order, as process
    /// groups require.
    pub same_order: bool,
    /// Micro-batches held by stages and ranks.
    pub loads: Loads,
}

/// Proves that a schedule is valid. Every micro-batch runs forward and backward once in every stage, each
/// action follows its inputs, backward passes are in micro-batch order, and sends match receives in order.
/// There is no deadlock with buffered sends, and no more micro-batches are in flight than the kind allows.
///
/// # Errors
/// The first violation, with rank, index and action.
pub fn validate(schedule: &Schedule) -> Result<Report> {
    check_shape(schedule)?;
    let mut done = Done::new(schedule);
    for (rank, actions) in schedule.actions.iter().enumerate() {
        for (index, action) in actions.iter().enumerate() {
            done.check(Listed { rank, index, action: *action })?;
        }
    }
    done.check_complete()?;
    let same_order = check_matching(schedule)?;
    let stuck = deadlock(schedule, Sends::Buffered);
    if !stuck.is_empty() {
        return Err(ScheduleError::Deadlock(stuck));
    }
    let loads = loads(schedule);
    check_in_flight(schedule, &loads)?;
    Ok(Report { rendezvous: deadlock(schedule, Sends::Rendezvous), same_order, loads })
}

fn check_shape(schedule: &Schedule) -> Result<()> {
    let Schedule { kind, ranks, stages, micro_batches, .. } = *schedule;
    let lists = schedule.actions.len();
    if ranks == 0 || stages == 0 || micro_batches == 0 || !stages.is_multiple_of(ranks) || lists != ranks {
        let reason =
            format!("{stages} stages, {micro_batches} micro-batches and {lists} lists for {ranks} ranks");
        return Err(ScheduleError::Shape { kind, reason });
    }
    Ok(())
}

/// An action and its index in a rank's list.
#[derive(Clone, Copy)]
struct Listed {
    rank: usize,
    index: usize,
    action: Action,
}

/// The actions checked so far.
struct Done<'a> {
    schedule: &'a Schedule,
    /// Whether each action was listed, by stage, micro-batch and kind.
    done: Vec<bool>,
    /// The latest micro-batch of each stage's input and weight halves.
    latest: Vec<[Option<usize>; 2]>,
}

/// The kinds that are tracked; `Backward` counts as its two halves.
const KINDS: [ActionKind; 7] = [
    ActionKind::ReceiveForward,
    ActionKind::Forward,
    ActionKind::SendForward,
    ActionKind::ReceiveBackward,
    ActionKind::BackwardInput,
    ActionKind::SendBackward,
    ActionKind::BackwardWeight,
];

impl<'a> Done<'a> {
    fn new(schedule: &'a Schedule) -> Self {
        let done = vec![false; schedule.stages * schedule.micro_batches * KINDS.len()];
        Done { schedule, done, latest: vec![[None; 2]; schedule.stages] }
    }

    fn at(&self, action: Action) -> usize {
        let kind = KINDS.iter().position(|kind| *kind == action.kind).unwrap_or_default();
        (action.stage * self.schedule.micro_batches + action.micro_batch) * KINDS.len() + kind
    }

    /// Returns whether a complete schedule contains this action.
    fn exists(&self, action: Action) -> bool {
        let Schedule { stages, micro_batches, .. } = *self.schedule;
        action.stage < stages
            && action.micro_batch < micro_batches
            && (!action.kind.is_transfer() || self.schedule.peer(action).is_some())
    }

    fn check(&mut self, at: Listed) -> Result<()> {
        let Listed { rank, index, action } = at;
        if !self.exists(action) {
            return Err(ScheduleError::Unknown { rank, index, action });
        }
        let home = self.schedule.rank_of(action.stage);
        if home != rank {
            return Err(ScheduleError::WrongRank { rank, index, action, home });
        }
        for half in halves(action) {
            let entry = self.at(half);
            if self.done[entry] {
                return Err(ScheduleError::Twice { rank, index, action });
            }
            if let Some(needs) = self.lacks(half) {
                return Err(ScheduleError::TooEarly { rank, index, action, needs });
            }
            self.check_order(at, half)?;
            self.done[entry] = true;
        }
        Ok(())
    }

    /// Returns the first missing action that `action` needs on its own rank.
    fn lacks(&self, action: Action) -> Option<Action> {
        let Action { stage, micro_batch, kind } = action;
        let same_micro_batch = |kind| Action::new(stage, kind, micro_batch);
        let needs = match kind {
            ActionKind::ReceiveForward | ActionKind::ReceiveBackward => [None, None],
            ActionKind::Forward => [self.input(action, ActionKind::ReceiveForward), None],
            ActionKind::SendForward => [Some(same_micro_batch(ActionKind::Forward)), None],
            ActionKind::BackwardInput | ActionKind::Backward => {
                [Some(same_micro_batch(ActionKind::Forward)), self.input(action, ActionKind::ReceiveBackward)]
            }
            ActionKind::SendBackward | ActionKind::BackwardWeight => {
                [Some(same_micro_batch(ActionKind::BackwardInput)), None]
            }
        };
        needs.into_iter().flatten().find(|needed| !self.done[self.at(*needed)])
    }

    /// Returns the action that provides the input of a pass: a receive, or a pass of the neighbouring stage
    /// on the same rank.
    fn input(&self, action: Action, receive: ActionKind) -> Option<Action> {
        let receive = Action { kind: receive, ..action };
        let stage = self.schedule.other_stage(receive)?;
        match self.schedule.peer(receive) {
            Some(_) => Some(receive),
            None => Some(Action { stage, ..action }),
        }
    }

    fn check_order(&mut self, at: Listed, half: Action) -> Result<()> {
        let which = match half.kind {
            ActionKind::BackwardInput => 0,
            ActionKind::BackwardWeight => 1,
            _ => return Ok(()),
        };
        let latest = &mut self.latest[half.stage][which];
        let Listed { rank, index, action } = at;
        if let Some(after) = latest.filter(|latest| *latest > half.micro_batch) {
            return Err(ScheduleError::OutOfOrder { rank, index, action, after });
        }
        *latest = Some(half.micro_batch);
        Ok(())
    }

    fn check_complete(&self) -> Result<()> {
        for stage in 0..self.schedule.stages {
            for micro_batch in 0..self.schedule.micro_batches {
                let actions = KINDS.map(|kind| Action::new(stage, kind, micro_batch));
                let missing = |action: &Action| self.exists(*action) && !self.done[self.at(*action)];
                if let Some(action) = actions.into_iter().find(missing) {
                    return Err(ScheduleError::Missing { rank: self.schedule.rank_of(stage), action });
                }
            }
        }
        Ok(())
    }
}

fn halves(action: Action) -> impl Iterator<Item = Action> {
    let with_kind = |kind| Action { kind, ..action };
    let halves = match action.kind {
        ActionKind::Backward => {
            [Some(with_kind(ActionKind::BackwardInput)), Some(with_kind(ActionKind::BackwardWeight))]
        }
        _ => [Some(action), None],
    };
    halves.into_iter().flatten()
}

/// Checks that each rank receives what its peers send, in order. Returns whether each pair of ranks also
/// agrees on the order across both directions.
fn check_matching(schedule: &Schedule) -> Result<bool> {
    let mut same_order = true;
    for a in 0..schedule.ranks {
        for b in a + 1..schedule.ranks {
            let at_a = between(schedule, a, b);
            let at_b = between(schedule, b, a);
            check_direction(schedule, &at_a, &at_b)?;
            check_direction(schedule, &at_b, &at_a)?;
            same_order &=
                at_a.iter().zip(&at_b).all(|(a, b)| other_end(schedule, a.action) == Some(b.action));
        }
    }
    Ok(same_order)
}

/// Returns the transfers between a rank and a peer.
fn between(schedule: &Schedule, rank: usize, peer: usize) -> Vec<Listed> {
    let listed = schedule.actions[rank].iter().enumerate();
    let listed = listed.map(|(index, action)| Listed { rank, index, action: *action });
    listed.filter(|at| schedule.peer(at.action) == Some(peer)).collect()
}

fn check_direction(schedule: &Schedule, sender: &[Listed], receiver: &[Listed]) -> Result<()> {
    let sends = sender.iter().filter(|at| at.action.kind.is_send());
    let receives = receiver.iter().filter(|at| at.action.kind.is_receive());
    for (send, receive) in sends.zip(receives) {
        if other_end(schedule, send.action) != Some(receive.action) {
            return Err(ScheduleError::Unmatched {
                from: send.rank,
                to: receive.rank,
                sent_at: send.index,
                sent: send.action,
                received_at: receive.index,
                received: receive.action,
            });
        }
    }
    Ok(())
}

/// Returns the action at the other end of a transfer.
fn other_end(schedule: &Schedule, action: Action) -> Option<Action> {
    let kind = match action.kind {
        ActionKind::SendForward => ActionKind::ReceiveForward,
        ActionKind::ReceiveForward => ActionKind::SendForward,
        ActionKind::SendBackward => ActionKind::ReceiveBackward,
        ActionKind::ReceiveBackward => ActionKind::SendBackward,
        _ => return None,
    };
    Some(Action::new(schedule.other_stage(action)?, kind, action.micro_batch))
}

/// Checks the bounds on activations and, for ZB-H1, on activations plus kept weight halves.
fn check_in_flight(schedule: &Schedule, loads: &Loads) -> Result<()> {
    let Schedule { kind, ranks, stages, micro_batches, .. } = *schedule;
    for (rank, load) in loads.ranks.iter().enumerate() {
        let one_f_one_b = micro_batches.min(stages - rank);
        let all = micro_batches * schedule.chunks();
        let bound = match kind {
            ScheduleKind::GPipe => all,
            ScheduleKind::Interleaved if stages > ranks => {
                (interleaved::warm_up(Shape { ranks, chunks: stages / ranks, micro_batches }, rank) + 1)
                    .min(all)
            }
            _ => one_f_one_b,
        };
        let bound_with_halves =
            if kind == ScheduleKind::ZeroBubble { micro_batches.min(stages) } else { bound };
        let check = |held: usize, bound: usize, index: usize| {
            let action = schedule.actions[rank][index];
            if held > bound {
                Err(ScheduleError::TooMany { rank, index, action, held, bound })
            } else {
                Ok(())
            }
        };
        for (index, Held { activations, weights, .. }) in load.during.iter().enumerate() {
            check(*activations, bound, index)?;
            check(activations + weights, bound_with_halves, index)?;
        }
    }
    Ok(())
}
