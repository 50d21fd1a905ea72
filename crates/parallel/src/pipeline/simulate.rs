//! Simulation of a schedule: times of its actions, and idle time of its ranks.

use crate::pipeline::action::{Action, ActionKind};

use crate::pipeline::error::{Result, ScheduleError, Stuck};
use crate::pipeline::load::{Held, Load};
use crate::pipeline::schedule::Schedule;
use crate::pipeline::validate::validate;

/// Times of a stage's passes for one micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StageTimes {
    /// Time of the forward pass.
    pub forward: u64,
    /// Time of `BackwardInput`.
    pub backward_input: u64,
    /// Time of `BackwardWeight`.
    pub backward_weight: u64,
}

/// Times of actions, in any common unit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ActionTimes {
    /// Times of each stage's passes.
    pub stages: Vec<StageTimes>,
    /// Time of one transfer between ranks.
    pub transfer: u64,
}

impl ActionTimes {
    /// Creates equal times for all stages; `passes` are forward, `BackwardInput` and `BackwardWeight`.
    pub fn equal(stages: usize, passes: [u64; 3], transfer: u64) -> Self {
        let [forward, backward_input, backward_weight] = passes;
        let stage = StageTimes { forward, backward_input, backward_weight };
        ActionTimes { stages: vec![stage; stages], transfer }
    }

    /// Returns the time of an action.
    pub fn time(&self, action: Action) -> u64 {
        let stage = self.stages[action.stage];
        match action.kind {
            ActionKind::Forward => stage.forward,
            ActionKind::BackwardInput => stage.backward_input,
            ActionKind::BackwardWeight => stage.backward_weight,
            ActionKind::Backward => stage.backward_input + stage.backward_weight,
            _ => self.transfer,
        }
    }
}

/// An interval of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Start.
    pub start: u64,
    /// End.
    pub end: u64,
}

/// The simulated times of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// Span of each action by rank and index. Both ends of a transfer have the same span: the time during
    /// which the tensor moves.
    pub spans: Vec<Vec<Span>>,
    /// End of the last action.
    pub makespan: u64,
    /// Compute time of each rank.
    pub busy: Vec<u64>,
}

impl Timeline {
    /// Converts to a coarser unit of `unit` current units, rounding every time to the nearest.
    pub fn in_units(&self, unit: u64) -> Timeline {
        let unit = unit.max(1);
        let round = |time: u64| (time + unit / 2) / unit;
        let span = |span: &Span| Span { start: round(span.start), end: round(span.end) };
        Timeline {
            spans: self.spans.iter().map(|spans| spans.iter().map(span).collect()).collect(),
            makespan: round(self.makespan),
            busy: self.busy.iter().map(|busy| round(*busy)).collect(),
        }
    }

    /// Fraction of the makespan during which a rank does not compute.
    pub fn idle(&self, rank: usize) -> f64 {
        share(self.makespan - self.busy[rank], self.makespan)
    }

    /// Fraction of the makespan during which ranks do not compute, averaged over all ranks.
    pub fn bubble(&self) -> f64 {
        let all = self.makespan * self.busy.len() as u64;
        share(all - self.busy.iter().sum::<u64>(), all)
    }

    /// Returns the changes over time of a rank's activations and kept weight halves: (start of the pass, new
    /// numbers).
    pub fn over_time(&self, schedule: &Schedule, rank: usize, load: &Load) -> Vec<(u64, Held)> {
        let mut changes: Vec<(u64, Held)> = Vec::new();
        for (index, action) in schedule.actions[rank].iter().enumerate() {
            if !action.kind.is_compute() {
                continue;
            }
            let held = Held { received_forward: 0, received_backward: 0, ..load.during[index] };
            if changes.last().is_none_or(|(_, last)| *last != held) {
                changes.push((self.spans[rank][index].start, held));
            }
        }
        changes
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Simulates a schedule. Each rank has a compute stream and a transfer stream, which both follow its list,
/// and a host that runs ahead. A pass starts when the previous pass has ended and its input exists. An end of
/// a transfer is ready when the rank's previous transfer has ended and, for the sender, the tensor exists.
/// The tensor moves once both ends are ready.
///
/// # Errors
/// The schedule is invalid, times are listed for another number of stages, or transfer streams deadlock.
pub fn simulate(schedule: &Schedule, times: &ActionTimes) -> Result<Timeline> {
    validate(schedule)?;
    let listed = times.stages.len();
    let stages = schedule.stages;
    if listed != stages {
        return Err(ScheduleError::Times { listed, stages });
    }
    let mut simulation = Simulation::new(schedule, times);
    while (0..schedule.ranks).any(|rank| simulation.advance(rank)) {}
    simulation.finish()
}

/// The streams of one rank.
#[derive(Clone, Copy, Default)]
struct Streams {
    /// Index of the compute stream's next action.
    compute: usize,
    /// Time at which the compute stream is free.
    compute_free: u64,
    /// Index of the transfer stream's next action.
    transfer: usize,
    /// Time at which the transfer stream is free.
    transfer_free: u64,
}

/// Times at which the two ends of a transfer are ready; `None` while unknown.
#[derive(Clone, Copy, Default)]
struct Ends {
    send: Option<u64>,
    receive: Option<u64>,
}

/// A simulation in progress.
struct Simulation<'a> {
    schedule: &'a Schedule,
    times: &'a ActionTimes,
    streams: Vec<Streams>,
    /// End times of the forward and input-backward passes, by direction, stage and micro-batch.
    pass_ends: Vec<Option<u64>>,
    /// End times of transfers, by direction, receiving stage and micro-batch.
    transfers: Vec<Ends>,
    spans: Vec<Vec<Span>>,
}

impl<'a> Simulation<'a> {
    fn new(schedule: &'a Schedule, times: &'a ActionTimes) -> Self {
        let cells = 2 * schedule.stages * schedule.micro_batches;
        Simulation {
            schedule,
            times,
            streams: vec![Streams::default(); schedule.ranks],
            pass_ends: vec![None; cells],
            transfers: vec![Ends::default(); cells],
            spans: schedule.actions.iter().map(|list| vec![Span::default(); list.len()]).collect(),
        }
    }

    fn cell(&self, backward: bool, stage: usize, micro_batch: usize) -> usize {
        (usize::from(backward) * self.schedule.stages + stage) * self.schedule.micro_batches + micro_batch
    }

    fn advance(&mut self, rank: usize) -> bool {
        let mut any = false;
        while self.compute(rank) || self.transfer(rank) {
            any = true;
        }
        any
    }

    /// Runs a rank's next pass if its input exists; returns whether it ran.
    fn compute(&mut self, rank: usize) -> bool {
        let index = self.streams[rank].compute;
        let Some(action) = self.schedule.actions[rank].get(index).copied() else { return false };
        if !action.kind.is_transfer() {
            let Some(input) = self.input(action) else { return false };
            let start = input.max(self.streams[rank].compute_free);
            let end = start + self.times.time(action);
            // An undivided backward sends the input gradient at its end, because it is one action.
            match action.kind {
                ActionKind::Forward => {
                    let cell = self.cell(false, action.stage, action.micro_batch);
                    self.pass_ends[cell] = Some(end);
                }
                ActionKind::Backward | ActionKind::BackwardInput => {
                    let cell = self.cell(true, action.stage, action.micro_batch);
                    self.pass_ends[cell] = Some(end);
                }
                _ => {}
            }
            self.spans[rank][index] = Span { start, end };
            self.streams[rank].compute_free = end;
        }
        self.streams[rank].compute += 1;
        true
    }

    /// Returns the time at which the input of a pass exists; `None` while unknown.
    fn input(&self, action: Action) -> Option<u64> {
        let (backward, receive) = match action.kind {
            ActionKind::Forward => (false, ActionKind::ReceiveForward),
            ActionKind::Backward | ActionKind::BackwardInput => (true, ActionKind::ReceiveBackward),
            _ => return Some(0),
        };
        let receive = Action { kind: receive, ..action };
        let Some(other) = self.schedule.other_stage(receive) else { return Some(0) };
        match self.schedule.peer(receive) {
            Some(_) => Some(self.transfer_span(receive)?.end),
            None => self.pass_ends[self.cell(backward, other, action.micro_batch)],
        }
    }

    fn transfer_cell(&self, action: Action) -> usize {
        let backward = matches!(action.kind, ActionKind::SendBackward | ActionKind::ReceiveBackward);
        let other = self.schedule.other_stage(action).unwrap_or(action.stage);
        let into = if action.kind.is_receive() { action.stage } else { other };
        self.cell(backward, into, action.micro_batch)
    }

    fn transfer_span(&self, action: Action) -> Option<Span> {
        let ends = self.transfers[self.transfer_cell(action)];
        let start = ends.send?.max(ends.receive?);
        Some(Span { start, end: start + self.times.transfer })
    }

    /// Makes a rank's end of its next transfer ready, and completes the transfer if the other end is ready
    /// too.
    fn transfer(&mut self, rank: usize) -> bool {
        let index = self.streams[rank].transfer;
        let Some(action) = self.schedule.actions[rank].get(index).copied() else { return false };
        if action.kind.is_transfer() {
            let Some(ready_time) = self.ready_time(action) else { return false };
            let reached = Some(ready_time.max(self.streams[rank].transfer_free));
            let cell = self.transfer_cell(action);
            let ends = &mut self.transfers[cell];
            let end = if action.kind.is_send() { &mut ends.send } else { &mut ends.receive };
            let news = *end != reached;
            *end = reached;
            let Some(span) = self.transfer_span(action) else { return news };
            self.streams[rank].transfer_free = span.end;
            self.spans[rank][index] = span;
        }
        self.streams[rank].transfer += 1;
        true
    }

    /// Returns the time at which a send's tensor is computed; 0 for a receive.
    fn ready_time(&self, action: Action) -> Option<u64> {
        let Action { stage, micro_batch, kind } = action;
        match kind.is_send() {
            true => self.pass_ends[self.cell(kind == ActionKind::SendBackward, stage, micro_batch)],
            false => Some(0),
        }
    }

    fn finish(self) -> Result<Timeline> {
        let mut stuck = Vec::new();
        for (rank, stream) in self.streams.iter().enumerate() {
            let actions = &self.schedule.actions[rank];
            let index = stream.transfer.min(stream.compute);
            let index = (index < actions.len()).then_some(index);
            stuck.extend(index.map(|index| Stuck { rank, index, action: actions[index] }));
        }
        if !stuck.is_empty() {
            return Err(ScheduleError::Deadlock(stuck));
        }
        let busy = |list: &Vec<Action>| {
            list.iter().filter(|action| action.kind.is_compute()).map(|action| self.times.time(*action)).sum()
        };
        let makespan = self.spans.iter().flatten().map(|span| span.end).max().unwrap_or(0);
        Ok(Timeline { makespan, busy: self.schedule.actions.iter().map(busy).collect(), spans: self.spans })
    }
}
