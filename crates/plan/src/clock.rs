//! The clock: when each call of a step's logs begins and ends, on the host and on the streams of each rank.
//!
//! A host makes one call after the other; a call begins on its stream when the host has made it, the calls
//! before it on the stream have ended, and the events for which the stream waits are over. Messages and
//! collectives begin when all ranks that take part have come to them. Nothing else is simulated: order and
//! waits are those that the worker enqueued.

mod meetings;
mod streams;

use std::collections::BTreeMap;
use std::ops::Range;

use device::{CallLog, CopyKind, LoggedCall, LoggedCommunication, LoggedEvent, RepeatedCalls, StreamKind};
use meetings::{Meeting, Meetings};
use streams::Streams;

use crate::samples::CallSize;
pub(crate) use streams::{ClockParts, Idle};

/// Steps that are simulated. The last one counts: by then the next step's calls overlap with the end of each.
const STEPS: usize = 3;
/// Steps by which the host may be ahead of the device: it reads a step's loss after the next one.
const AHEAD: usize = 2;
/// Most calls of all ranks in a step, if they are several.
const MOST_CALLS: usize = 1 << 21;
/// Part of a repetition's time by which another may differ that takes as long.
const SAME: f64 = 1e-6;

pub(crate) struct RankCalls {
    /// Number of the rank in the world.
    rank: usize,
    calls: Vec<TimedCall>,
    stretches: Vec<Stretch>,
    /// The ranks that share this one's sequences; empty if none do.
    sequences: Vec<usize>,
}

pub(crate) struct CallTime {
    /// Seconds on the device.
    pub(crate) device: f64,
    /// Seconds on the host.
    pub(crate) host: f64,
    /// Whether calls of its kind were measured.
    pub(crate) is_measured: bool,
    /// The part of its speed that compute has meanwhile.
    pub(crate) compute_speed: f64,
}

/// A call with its times. Large pipelines have millions.
struct TimedCall {
    /// Seconds on the device.
    seconds: f64,
    /// Seconds on the host.
    host: f64,
    effect: Effect,
    family: Option<&'static str>,
    is_measured: bool,
    compute_speed: f64,
}

/// The effect of a call on host and streams.
enum Effect {
    Run(StreamKind),
    /// A copy or a zero-fill.
    Copy {
        stream: StreamKind,
        kind: CopyKind,
    },
    /// A message or a collective.
    Communicate(Box<LoggedCommunication>),
    Record(StreamKind),
    Wait {
        stream: StreamKind,
        event: LoggedEvent,
    },
    HostWait(LoggedEvent),
    Synchronize,
    Section(&'static str),
}

impl RankCalls {
    pub(crate) fn new(rank: usize, log: CallLog, times: impl Fn(&LoggedCall) -> CallTime) -> Self {
        let stretches = stretches(&log);
        let timed = |call: LoggedCall| {
            let time = times(&call);
            let family = CallSize::family(&call);
            let CallTime { device: seconds, host, is_measured, compute_speed } = time;
            TimedCall { seconds, host, effect: Effect::of(call), family, is_measured, compute_speed }
        };
        RankCalls {
            rank,
            calls: log.calls.into_iter().map(timed).collect(),
            stretches,
            sequences: Vec::new(),
        }
    }

    /// Returns the calls of a rank that shares its sequences with `ranks`.
    pub(crate) fn with_sequences(self, ranks: Vec<usize>) -> Self {
        RankCalls { sequences: if ranks.len() > 1 { ranks } else { Vec::new() }, ..self }
    }

    /// Returns the reason of waits for an exchange with ranks that share sequences; `None` for others.
    fn reason_of(&self, communication: &LoggedCommunication) -> Option<Idle> {
        let is_exchange = communication.stream == StreamKind::Exchange;
        let shares = |rank: &usize| self.sequences.contains(rank);
        (is_exchange && communication.ranks.iter().all(shares)).then_some(Idle::Sequences)
    }

    /// Returns the families of calls with their numbers and seconds on the device, the longest first.
    pub(crate) fn families(&self) -> Vec<(&'static str, u64, f64)> {
        let mut totals = BTreeMap::new();
        for Stretch { calls, times } in &self.stretches {
            for TimedCall { seconds, family, .. } in &self.calls[calls.clone()] {
                if let Some(family) = family {
                    let (count, sum) = totals.entry(*family).or_insert((0, 0.0));
                    *count += *times as u64;
                    *sum += *times as f64 * seconds;
                }
            }
        }
        let mut totals: Vec<_> =
            totals.into_iter().map(|(family, (count, sum))| (family, count, sum)).collect();
        totals.sort_by(|one, other| other.2.total_cmp(&one.2));
        totals
    }

    /// Share of the seconds on the device in kinds of calls that were measured.
    pub(crate) fn measured_share(&self) -> f64 {
        let (mut measured, mut all) = (0.0, 0.0);
        for Stretch { calls, times } in &self.stretches {
            for TimedCall { seconds, is_measured, .. } in &self.calls[calls.clone()] {
                let seconds = *times as f64 * seconds;
                all += seconds;
                measured += if *is_measured { seconds } else { 0.0 };
            }
        }
        if all > 0.0 { measured / all } else { 0.0 }
    }

    /// Number of calls, repetitions included.
    fn count(&self) -> usize {
        let count = |Stretch { calls, times }: &Stretch| calls.len().saturating_mul(*times);
        self.stretches.iter().map(count).fold(0, usize::saturating_add)
    }
}

impl Effect {
    fn of(call: LoggedCall) -> Self {
        match call {
            LoggedCall::Kernel(kernel) => Effect::Run(kernel.stream),
            LoggedCall::Matmul { .. } | LoggedCall::Convolution { .. } => Effect::Run(StreamKind::Compute),
            LoggedCall::Copy { kind, stream, .. } => Effect::Copy { stream, kind },
            LoggedCall::Communication(communication) => Effect::Communicate(Box::new(communication)),
            LoggedCall::Record(stream) => Effect::Record(stream),
            LoggedCall::Wait { stream, event } => Effect::Wait { stream, event },
            LoggedCall::HostWait(event) => Effect::HostWait(event),
            LoggedCall::Synchronize => Effect::Synchronize,
            LoggedCall::Section(name) => Effect::Section(name),
        }
    }
}

/// Calls of a log that are made a number of times in succession.
#[derive(Clone, Debug)]
struct Stretch {
    calls: Range<usize>,
    times: usize,
}

/// Returns the stretches of a log in order.
fn stretches(log: &CallLog) -> Vec<Stretch> {
    let mut stretches = Vec::new();
    let mut next = 0;
    for RepeatedCalls { calls, times } in &log.repeated {
        stretches.push(Stretch { calls: next..calls.start, times: 1 });
        stretches.push(Stretch { calls: calls.clone(), times: times + 1 });
        next = calls.end;
    }
    stretches.push(Stretch { calls: next..log.calls.len(), times: 1 });
    stretches
}

struct Rank<'a> {
    calls: &'a RankCalls,
    /// Indices of the stretch, of its repetition and of the next call.
    stretch: usize,
    repetition: usize,
    next: usize,
    step: usize,
    is_alone: bool,
    /// The state after the last repetitions of the present stretch.
    periods: [Option<Period>; 2],
    host: f64,
    streams: Streams,
    /// The end of the last compute of each step.
    ends: Vec<f64>,
    meetings: Meetings,
    /// Meetings to which the rank has come for the next call.
    awaited: Option<Vec<Meeting>>,
}

/// The state of a rank after a repetition.
struct Period {
    host: f64,
    compute: f64,
    parts: ClockParts,
}

/// Simulates steps of ranks that communicate with each other and with ranks that are as fast. Returns the
/// parts of the last step of each; `None` if several ranks make so many calls that it would take long.
pub(crate) fn simulate(ranks: &[RankCalls]) -> Option<Vec<ClockParts>> {
    let calls = ranks.iter().map(RankCalls::count).fold(0, usize::saturating_add);
    if ranks.len() > 1 && calls > MOST_CALLS {
        return None;
    }
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
    Some(simulated.iter().map(|rank| rank.streams.parts()).collect())
}

impl<'a> Rank<'a> {
    fn new(calls: &'a RankCalls, ranks: &[usize]) -> Self {
        Rank {
            calls,
            stretch: 0,
            repetition: 0,
            next: 0,
            is_alone: ranks.len() == 1,
            periods: [None, None],
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
            let Some(Stretch { calls, times }) = self.calls.stretches.get(self.stretch) else {
                self.end_step();
                moved = true;
                continue;
            };
            let index = calls.start + self.next;
            if index < calls.end && self.repetition < *times {
                if !self.make(index, arrivals, forced) {
                    return moved;
                }
                (moved, forced) = (true, false);
                self.next += 1;
                continue;
            }
            (self.next, self.repetition) = (0, self.repetition + 1);
            if self.repetition < *times {
                self.skip_periods();
            } else {
                (self.stretch, self.repetition, self.periods) = (self.stretch + 1, 0, [None, None]);
            }
        }
        moved
    }

    /// Continues as if all further repetitions but one had been made, if the last two took as long.
    fn skip_periods(&mut self) {
        if !self.is_alone {
            return;
        }
        let now = Period {
            host: self.host,
            compute: self.streams.ready(StreamKind::Compute),
            parts: self.streams.current(),
        };
        if let [Some(first), Some(second)] = &self.periods {
            let [before, last] = [second.compute - first.compute, now.compute - second.compute];
            let left = self.calls.stretches[self.stretch].times - self.repetition - 1;
            if left > 0 && (last - before).abs() <= SAME * last {
                let times = left as f64;
                self.host += times * (now.host - second.host);
                self.streams.repeat(times * last, times, &second.parts);
                self.repetition += left;
            }
        }
        let [_, second] = std::mem::take(&mut self.periods);
        self.periods = [second, Some(now)];
    }

    fn end_step(&mut self) {
        self.ends.push(self.streams.end_step());
        (self.stretch, self.repetition, self.next, self.step) = (0, 0, 0, self.step + 1);
        if let Some(end) = self.ends.len().checked_sub(AHEAD).and_then(|step| self.ends.get(step)) {
            self.host = self.host.max(*end);
        }
    }

    /// Makes a call. Returns false if it awaits other ranks.
    fn make(&mut self, index: usize, arrivals: &mut meetings::Arrivals, forced: bool) -> bool {
        let calls = self.calls;
        let call @ TimedCall { host, effect, .. } = &calls.calls[index];
        if let Effect::Communicate(communication) = effect {
            let stream = communication.stream;
            let ready = self.streams.ready(stream).max(self.host + host);
            let meetings = &mut self.meetings;
            let awaited = self.awaited.get_or_insert_with(|| {
                let awaited = meetings.of(communication);
                awaited.iter().for_each(|meeting| arrivals.come(meeting, ready));
                awaited
            });
            let begin =
                awaited.iter().try_fold(ready, |begin, meeting| Some(begin.max(arrivals.of(meeting)?)));
            let Some(begin) = begin.or_else(|| forced.then_some(ready)) else { return false };
            self.awaited = None;
            self.host += host;
            let reason = self.calls.reason_of(communication);
            self.streams.set_reason(stream, reason);
            self.streams.wait_until(stream, begin, reason.unwrap_or_else(|| Idle::of(stream)));
            self.run(stream, call);
            return true;
        }
        self.host += host;
        match effect {
            Effect::Run(stream) => self.run(*stream, call),
            Effect::Copy { stream, kind } => {
                match kind {
                    CopyKind::FromPool | CopyKind::ToPool => {
                        self.streams.set_reason(*stream, Some(Idle::Offload));
                    }
                    CopyKind::FromHost => self.streams.set_reason(*stream, None),
                    _ => {}
                }
                self.run(*stream, call);
                if *kind == CopyKind::ToHost {
                    self.host = self.host.max(self.streams.ready(*stream));
                }
            }
            Effect::Record(stream) => self.streams.record(*stream, self.host),
            Effect::Wait { stream, event } => {
                let (time, reason) = self.streams.event(*event);
                self.streams.wait_until(*stream, time, reason);
            }
            Effect::HostWait(event) => self.host = self.host.max(self.streams.event(*event).0),
            Effect::Synchronize => self.host = self.host.max(self.streams.all_ready()),
            Effect::Section(name) => self.streams.section(name),
            Effect::Communicate(_) => {}
        }
        true
    }

    fn run(&mut self, stream: StreamKind, call: &TimedCall) {
        self.streams.run(stream, self.host, call.seconds);
        if call.compute_speed < 1.0 {
            self.streams.slow_compute(stream, call.seconds, call.compute_speed);
        }
    }
}

#[cfg(test)]
mod tests;
