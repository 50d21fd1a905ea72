//! Inserts transfers between the passes of a schedule.
//!
//! A transfer listed too early delays later ones; a transfer listed too late is not hidden by compute. If the
//! lists of two ranks disagree, they deadlock as soon as a send waits for its receive. Therefore a dry run
//! times the passes, with equal times and almost free transfers, and all transfers of all ranks are ordered
//! by their start in that run. Every list is then part of one global order in which each action follows its
//! inputs.
//!
//! A transfer starts when its tensor exists and the pass that consumes the previous transfer, into the same
//! stage from the same side, has started. At most one buffer per stage and direction is thus filled ahead.

use crate::pipeline::action::{Action, ActionKind};
use crate::pipeline::kind::ScheduleKind;
use crate::pipeline::schedule::Schedule;

/// Time units of one forward, input-backward or weight-backward pass; a transfer takes 1.
const PASS: u64 = 1_000_000;

/// Start times in the dry run; `None` while unknown.
type Times = Vec<Option<u64>>;

/// Inserts transfers into the lists of a schedule that contains only passes.
pub(crate) fn weave(schedule: &Schedule) -> Vec<Vec<Action>> {
    let run = DryRun::time_passes(schedule);
    let mut lists: Vec<Vec<(Key, Action)>> = vec![Vec::new(); schedule.ranks];
    for (rank, actions) in schedule.actions.iter().enumerate() {
        for (action, start) in actions.iter().zip(&run.starts[rank]) {
            lists[rank].push(((*start, Class::Compute, 0, 0, 0), *action));
        }
    }
    for transfer in transfers(schedule) {
        let Some(start) = run.transfer_start(transfer) else { continue };
        let Transfer { direction, into, micro_batch } = transfer;
        let key = (start, Class::Transfer, direction as usize, into, micro_batch);
        let (send, receive) = transfer.ends();
        lists[schedule.rank_of(send.stage)].push((key, send));
        lists[schedule.rank_of(receive.stage)].push((key, receive));
    }
    let sorted = |mut list: Vec<(Key, Action)>| {
        list.sort_by_key(|(key, _)| *key);
        list.into_iter().map(|(_, action)| action).collect()
    };
    lists.into_iter().map(sorted).collect()
}

/// Sort key, giving the same order on all ranks: start, class, direction, stage, micro-batch.
type Key = (u64, Class, usize, usize, usize);

/// Order at equal times: transfers that are ready precede passes that start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Transfer,
    Compute,
}

#[derive(Clone, Copy)]
enum Direction {
    Forward,
    Backward,
}

/// A tensor sent from a neighbouring stage to stage `into`.
#[derive(Clone, Copy)]
struct Transfer {
    direction: Direction,
    into: usize,
    micro_batch: usize,
}

impl Transfer {
    fn from(self) -> usize {
        match self.direction {
            Direction::Forward => self.into - 1,
            Direction::Backward => self.into + 1,
        }
    }

    fn ends(self) -> (Action, Action) {
        let (send, receive) = match self.direction {
            Direction::Forward => (ActionKind::SendForward, ActionKind::ReceiveForward),
            Direction::Backward => (ActionKind::SendBackward, ActionKind::ReceiveBackward),
        };
        (Action::new(self.from(), send, self.micro_batch), Action::new(self.into, receive, self.micro_batch))
    }
}

/// Returns all transfers between ranks.
fn transfers(schedule: &Schedule) -> impl Iterator<Item = Transfer> {
    let stages = schedule.stages;
    let micro_batches = schedule.micro_batches;
    let cuts = if schedule.ranks == 1 { 1..1 } else { 1..stages };
    cuts.flat_map(move |cut| {
        (0..micro_batches).flat_map(move |micro_batch| {
            let forward = Transfer { direction: Direction::Forward, into: cut, micro_batch };
            [forward, Transfer { direction: Direction::Backward, into: cut - 1, micro_batch }]
        })
    })
}

fn duration(action: Action) -> u64 {
    if action.kind == ActionKind::Backward { 2 * PASS } else { PASS }
}

/// A dry run of the passes: start times by stage and micro-batch, and by index in each rank's list.
struct DryRun<'a> {
    schedule: &'a Schedule,
    forward: Times,
    backward: Times,
    starts: Vec<Vec<u64>>,
}

impl<'a> DryRun<'a> {
    fn time_passes(schedule: &'a Schedule) -> Self {
        let none = vec![None; schedule.stages * schedule.micro_batches];
        let starts = vec![Vec::new(); schedule.ranks];
        let mut run = DryRun { schedule, forward: none.clone(), backward: none, starts };
        while (0..schedule.ranks).any(|rank| run.advance(rank)) {}
        run
    }

    /// Starts all passes of a rank that are ready; returns whether there were any.
    fn advance(&mut self, rank: usize) -> bool {
        let actions = &self.schedule.actions[rank];
        let before = self.starts[rank].len();
        while let Some(action) = actions.get(self.starts[rank].len()) {
            let Some(ready) = self.ready(*action) else { break };
            let last = self.starts[rank].len().checked_sub(1);
            let free = last.map_or(0, |last| self.starts[rank][last] + duration(actions[last]));
            let start = ready.max(free);
            let at = self.at(action.stage, action.micro_batch);
            match action.kind {
                ActionKind::Forward => self.forward[at] = Some(start),
                ActionKind::Backward | ActionKind::BackwardInput => self.backward[at] = Some(start),
                _ => {}
            }
            self.starts[rank].push(start);
        }
        self.starts[rank].len() > before
    }

    fn at(&self, stage: usize, micro_batch: usize) -> usize {
        stage * self.schedule.micro_batches + micro_batch
    }

    /// Time at which the inputs of an action exist; `None` while unknown.
    fn ready(&self, action: Action) -> Option<u64> {
        let Action { stage, micro_batch, kind } = action;
        let input = match kind {
            ActionKind::Forward if stage > 0 => {
                Transfer { direction: Direction::Forward, into: stage, micro_batch }
            }
            ActionKind::Backward | ActionKind::BackwardInput if stage + 1 < self.schedule.stages => {
                Transfer { direction: Direction::Backward, into: stage, micro_batch }
            }
            _ => return Some(0),
        };
        if self.schedule.ranks == 1 { self.computed(input) } else { Some(self.transfer_start(input)? + 1) }
    }

    /// Time at which the transfer's tensor exists; `None` while unknown.
    fn computed(&self, transfer: Transfer) -> Option<u64> {
        let from = self.at(transfer.from(), transfer.micro_batch);
        match transfer.direction {
            Direction::Forward => Some(self.forward[from]? + PASS),
            Direction::Backward => {
                let divided = self.schedule.kind == ScheduleKind::ZeroBubble;
                Some(self.backward[from]? + if divided { PASS } else { 2 * PASS })
            }
        }
    }

    fn transfer_start(&self, transfer: Transfer) -> Option<u64> {
        let consumers = match transfer.direction {
            Direction::Forward => &self.forward,
            Direction::Backward => &self.backward,
        };
        let buffer_free = match transfer.micro_batch.checked_sub(1) {
            // Strictly later, so that the receive follows that pass in the list.
            Some(before) => consumers[self.at(transfer.into, before)]? + 1,
            None => 0,
        };
        Some(self.computed(transfer)?.max(buffer_free))
    }
}
