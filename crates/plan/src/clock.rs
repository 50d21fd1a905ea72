//! The clock: when each call of a step's logs begins and ends, on the host and on the streams of each rank.
//!
//! A host makes one call after the other; a call begins on its stream when the host has made it, the calls
//! before it on the stream have ended, and the events for which the stream waits are over. Messages and
//! collectives begin when all ranks that take part have come to them. Nothing else is simulated: order and
//! waits are those that the worker enqueued.

mod meetings;
mod streams;

use std::collections::BTreeMap;

use device::{CallLog, LoggedCall, StreamKind};
use meetings::{Meeting, Meetings};
use streams::Streams;
pub(crate) use streams::{Idle, StepParts};

/// Steps that are simulated. The last one counts: by then the next step's calls overlap with the end of each.
const STEPS: usize = 3;
/// Steps by which the host may be ahead of the device: it reads a step's loss after the next one.
const AHEAD: usize = 2;

/// The calls of a rank in a step.
pub(crate) struct RankCalls {
    /// Number of the rank in the world.
    pub(crate) rank: usize,
    pub(crate) log: CallLog,
    /// Seconds of each call on the device.
    pub(crate) seconds: Vec<f64>,
    /// Seconds of each call on the host.
    pub(crate) host: Vec<f64>,
}

impl RankCalls {
    /// Returns the number of calls and their seconds on the device by a name of each, the longest first.
    pub(crate) fn totals<K: Ord>(&self, name: impl Fn(&LoggedCall) -> Option<K>) -> Vec<(K, u64, f64)> {
        let mut totals = BTreeMap::new();
        for index in order(&self.log) {
            let (call, seconds) = (&self.log.calls[index as usize], self.seconds[index as usize]);
            if let Some(name) = name(call) {
                let (count, sum) = totals.entry(name).or_insert((0, 0.0));
                *count += 1;
                *sum += seconds;
            }
        }
        let mut totals: Vec<_> = totals.into_iter().map(|(name, (count, sum))| (name, count, sum)).collect();
        totals.sort_by(|one, other| other.2.total_cmp(&one.2));
        totals
    }
}

/// Indices of a log's calls in order, repetitions included.
fn order(log: &CallLog) -> Vec<u32> {
    let mut order = Vec::with_capacity(log.calls.len());
    let mut next = 0;
    let index = |index: usize| u32::try_from(index).unwrap_or(u32::MAX);
    for repeated in &log.repeated {
        order.extend((next..repeated.calls.end).map(index));
        for _ in 0..repeated.times {
            order.extend(repeated.calls.clone().map(index));
        }
        next = repeated.calls.end;
    }
    order.extend((next..log.calls.len()).map(index));
    order
}

/// A rank in the simulation.
struct Rank<'a> {
    calls: &'a RankCalls,
    order: Vec<u32>,
    /// Index of the next call in `order`.
    next: usize,
    step: usize,
    host: f64,
    streams: Streams,
    /// The end of the last compute of each step.
    ends: Vec<f64>,
    meetings: Meetings,
    /// Meetings that the next call awaits, and whether this rank is known to have come to them.
    awaited: Option<Vec<Meeting>>,
}

/// Simulates steps of ranks that communicate with each other and with ranks that are as fast. Returns the
/// parts of the last step of each.
pub(crate) fn simulate(ranks: &[RankCalls]) -> Vec<StepParts> {
    let numbers: Vec<usize> = ranks.iter().map(|rank| rank.rank).collect();
    let mut simulated: Vec<Rank<'_>> = ranks.iter().map(|calls| Rank::new(calls, &numbers)).collect();
    let mut arrivals = meetings::Arrivals::default();
    loop {
        let mut moved = false;
        for rank in &mut simulated {
            moved |= rank.advance(&mut arrivals, false);
        }
        if simulated.iter().all(Rank::is_done) {
            break;
        }
        if !moved {
            // Calls that no logged rank answers, as those of a step that ends in another rank's next one.
            let stuck = simulated.iter_mut().find(|rank| !rank.is_done());
            if !stuck.is_some_and(|rank| rank.advance(&mut arrivals, true)) {
                break;
            }
        }
    }
    simulated.iter().map(|rank| rank.streams.parts()).collect()
}

impl<'a> Rank<'a> {
    fn new(calls: &'a RankCalls, ranks: &[usize]) -> Self {
        Rank {
            calls,
            order: order(&calls.log),
            next: 0,
            step: 0,
            host: 0.0,
            streams: Streams::default(),
            ends: Vec::new(),
            meetings: Meetings::new(calls.rank, ranks),
            awaited: None,
        }
    }

    fn is_done(&self) -> bool {
        self.step == STEPS
    }

    /// Makes calls until one awaits other ranks. Returns whether any was made. `forced`: makes the next one
    /// without those that have not come.
    fn advance(&mut self, arrivals: &mut meetings::Arrivals, mut forced: bool) -> bool {
        let mut moved = false;
        while !self.is_done() {
            let Some(index) = self.order.get(self.next) else {
                self.end_step();
                moved = true;
                continue;
            };
            let index = *index as usize;
            if !self.make(index, arrivals, forced) {
                return moved;
            }
            (moved, forced) = (true, false);
            self.next += 1;
        }
        moved
    }

    fn end_step(&mut self) {
        self.ends.push(self.streams.end_step());
        (self.next, self.step) = (0, self.step + 1);
        if let Some(end) = self.ends.len().checked_sub(AHEAD).and_then(|step| self.ends.get(step)) {
            self.host = self.host.max(*end);
        }
    }

    /// Makes a call. Returns false if it awaits other ranks.
    fn make(&mut self, index: usize, arrivals: &mut meetings::Arrivals, forced: bool) -> bool {
        let (call, seconds) = (&self.calls.log.calls[index], self.calls.seconds[index]);
        if let LoggedCall::Communication(communication) = call {
            let ready = self.streams.ready(communication.stream).max(self.host + self.calls.host[index]);
            let meetings = &mut self.meetings;
            let awaited = self.awaited.get_or_insert_with(|| {
                let awaited = meetings.of(communication);
                awaited.iter().for_each(|meeting| arrivals.come(meeting, ready));
                awaited
            });
            let begin = match awaited.iter().map(|meeting| arrivals.of(meeting)).collect::<Option<Vec<_>>>() {
                Some(times) => times.into_iter().fold(ready, f64::max),
                None if forced => ready,
                None => return false,
            };
            self.awaited = None;
            self.host += self.calls.host[index];
            self.streams.wait_until(communication.stream, begin, Idle::of(communication.stream));
            self.streams.run(communication.stream, self.host, seconds);
            return true;
        }
        self.host += self.calls.host[index];
        match call {
            LoggedCall::Kernel(kernel) => self.streams.run(kernel.stream, self.host, seconds),
            LoggedCall::Matmul { .. } | LoggedCall::Convolution { .. } => {
                self.streams.run(StreamKind::Compute, self.host, seconds);
            }
            LoggedCall::Copy { kind, stream, .. } => {
                self.streams.run(*stream, self.host, seconds);
                if *kind == device::CopyKind::ToHost {
                    self.host = self.host.max(self.streams.ready(*stream));
                }
            }
            LoggedCall::Record(stream) => self.streams.record(*stream, self.host),
            LoggedCall::Wait { stream, event } => {
                let time = self.streams.event(*event);
                self.streams.wait_until(*stream, time, Idle::of(event.stream));
            }
            LoggedCall::HostWait(event) => self.host = self.host.max(self.streams.event(*event)),
            LoggedCall::Synchronize => self.host = self.host.max(self.streams.all_ready()),
            LoggedCall::Section(name) => self.streams.section(name),
            LoggedCall::Communication(_) => {}
        }
        true
    }
}

#[cfg(test)]
mod tests;
