//! The clock: a simulation of when each call of a step begins and ends, on each rank's host and streams.
//!
//! A host makes one call after another. A call begins on its stream once the host has made it, earlier calls
//! on the stream have ended, and the events that the stream waits for have occurred. Messages and collectives
//! begin when all participating ranks have reached them. Nothing else is simulated: order and waits are
//! exactly as the worker enqueued them.

mod meetings;
mod streams;

use std::collections::BTreeMap;
use std::ops::Range;

use device::cuda::STAGED_BYTES;
use device::{CallLog, CopyKind, LoggedCall, LoggedCommunication, LoggedEvent, RepeatedCalls, StreamKind};
use meetings::{Meeting, Meetings};
use streams::Streams;

use crate::call_size::CallSize;
pub(crate) use streams::{ClockParts, Idle};

/// Number of simulated steps. Only the last is measured: by then every step overlaps with the next one's
/// calls.
const STEPS: usize = 3;
/// Maximum number of steps that the host is ahead of the device; it reads a step's loss after enqueuing the
/// next step.
const AHEAD: usize = 2;
/// Maximum number of calls in a step, over all ranks, if several ranks are simulated.
const MOST_CALLS: usize = 1 << 21;
/// Relative difference below which two repetitions take the same time.
const SAME: f64 = 1e-6;

pub(crate) struct RankCalls {
    /// Number of the rank in the world.
    rank: usize,
    calls: Vec<TimedCall>,
    stretches: Vec<Stretch>,
    /// The context-parallel ranks of this rank's group, including itself; empty without context parallelism.
    sequences: Vec<usize>,
}

pub(crate) struct CallTime {
    /// Seconds on the device.
    pub(crate) device: f64,
    /// Seconds on the host.
    pub(crate) host: f64,
    /// Whether calls of this kind were measured.
    pub(crate) is_measured: bool,
    /// Speed of compute during the call, as a fraction of its full rate.
    pub(crate) compute_speed: f64,
}

/// A call with its times. Large pipelines have millions of calls, so this is small.
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

/// A call's effect on the host and on streams.
enum Effect {
    Run(StreamKind),
    /// A copy or a zero-fill.
    Copy {
        stream: StreamKind,
        kind: CopyKind,
        /// Part of its bytes that pinned memory holds at once.
        staged: f64,
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
            TimedCall { seconds, host, effect: Effect::from_call(call), family, is_measured, compute_speed }
        };
        RankCalls {
            rank,
            calls: log.calls.into_iter().map(timed).collect(),
            stretches,
            sequences: Vec::new(),
        }
    }

    /// Sets the context-parallel ranks of this rank's group.
    pub(crate) fn with_sequences(self, ranks: Vec<usize>) -> Self {
        RankCalls { sequences: if ranks.len() > 1 { ranks } else { Vec::new() }, ..self }
    }

    /// Returns [`Idle::Sequences`] for an exchange among context-parallel ranks, else `None`.
    fn reason_of(&self, communication: &LoggedCommunication) -> Option<Idle> {
        let is_exchange = communication.stream == StreamKind::Exchange;
        let shares = |rank: &usize| self.sequences.contains(rank);
        (is_exchange && communication.ranks.iter().all(shares)).then_some(Idle::Sequences)
    }

    /// Returns the number and device seconds of calls by family, the longest first.
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

    /// Returns the fraction of device seconds in measured kinds of calls.
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

    /// Returns the number of calls, including repetitions.
    fn count(&self) -> usize {
        let count = |Stretch { calls, times }: &Stretch| calls.len().saturating_mul(*times);
        self.stretches.iter().map(count).fold(0, usize::saturating_add)
    }
}

impl Effect {
    fn from_call(call: LoggedCall) -> Self {
        match call {
            LoggedCall::Kernel(kernel) => Effect::Run(kernel.stream),
            LoggedCall::Matmul { .. } | LoggedCall::Convolution { .. } => Effect::Run(StreamKind::Compute),
            LoggedCall::Copy { kind, stream, bytes } => {
                let staged = (STAGED_BYTES as f64 / bytes.max(1) as f64).min(1.0);
                Effect::Copy { stream, kind, staged }
            }
            LoggedCall::Communication(communication) => Effect::Communicate(Box::new(communication)),
            LoggedCall::Record(stream) => Effect::Record(stream),
            LoggedCall::Wait { stream, event } => Effect::Wait { stream, event },
            LoggedCall::HostWait(event) => Effect::HostWait(event),
            LoggedCall::Synchronize => Effect::Synchronize,
            LoggedCall::Section(name) => Effect::Section(name),
        }
    }
}

/// A range of a log's calls that is repeated a number of times.
#[derive(Clone, Debug)]
struct Stretch {
    calls: Range<usize>,
    times: usize,
}

/// Divides a log into ranges of calls, in order.
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
    /// Index of the current range of repeated calls.
    stretch: usize,
    repetition: usize,
    next: usize,
    step: usize,
    is_alone: bool,
    /// States after the last two repetitions of the current range.
    periods: [Option<Period>; 2],
    host: f64,
    streams: Streams,
    /// End of the last compute of each step, in seconds.
    ends: Vec<f64>,
    meetings: Meetings,
    /// Messages and collectives at which the rank waits for its next call.
    awaited: Option<Vec<Meeting>>,
}

/// A rank's state after one repetition of a range of calls.
struct Period {
    host: f64,
    compute: f64,
    parts: ClockParts,
}

/// Simulates steps of ranks that communicate with each other; ranks that are not simulated are assumed to be
/// as fast. Returns the breakdown of each rank's last step; `None` if several ranks make too many calls to
/// simulate.
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
            // The call waits for a rank that is not simulated or that only answers in its next step.
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

    /// Makes calls until one waits for other ranks. Returns whether it made any. `forced` makes the next call
    /// without waiting for ranks that have not arrived.
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

    /// Skips all but one of the remaining repetitions if the last two took equally long, extrapolating their
    /// times.
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

    /// Makes a call. Returns false if it waits for other ranks.
    fn make(&mut self, index: usize, arrivals: &mut meetings::Arrivals, forced: bool) -> bool {
        let calls = self.calls;
        let call @ TimedCall { host, effect, .. } = &calls.calls[index];
        if let Effect::Communicate(communication) = effect {
            let stream = communication.stream;
            let ready = self.streams.ready(stream).max(self.host + host);
            let meetings = &mut self.meetings;
            let awaited = self.awaited.get_or_insert_with(|| {
                let awaited = meetings.next_meetings(communication);
                awaited.iter().for_each(|meeting| arrivals.come(meeting, ready));
                awaited
            });
            let begin = awaited
                .iter()
                .try_fold(ready, |begin, meeting| Some(begin.max(arrivals.last_arrival(meeting)?)));
            let Some(begin) = begin.or_else(|| forced.then_some(ready)) else { return false };
            self.awaited = None;
            self.host += host;
            let reason = self.calls.reason_of(communication);
            self.streams.set_reason(stream, reason);
            self.streams.wait_until(stream, begin, reason.unwrap_or_else(|| Idle::from_stream(stream)));
            self.run(stream, call);
            return true;
        }
        let began = self.host;
        self.host += host;
        match effect {
            Effect::Run(stream) => self.run(*stream, call),
            Effect::Copy { stream, kind: CopyKind::FromHost, staged } => {
                self.copy_from_host(*stream, began, call, *staged);
            }
            Effect::Copy { stream, kind, .. } => {
                match kind {
                    CopyKind::FromPool | CopyKind::ToPool => {
                        self.streams.set_reason(*stream, Some(Idle::Offload));
                    }
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

    /// Copies from the host, which began at `began` to fill pinned memory. The device copies meanwhile. The
    /// host waits for it if pinned memory holds only the part `staged`.
    fn copy_from_host(&mut self, stream: StreamKind, began: f64, call: &TimedCall, staged: f64) {
        self.streams.set_reason(stream, None);
        let begin = self.streams.ready(stream).max(began);
        let filled = self.host.max(begin + (1.0 - staged) * call.host);
        let end = filled.max(begin + call.seconds);
        self.streams.run(stream, began, end - begin);
        self.host = began + staged * call.host;
        if staged < 1.0 {
            self.host = self.host.max(end - staged * call.seconds);
        }
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
