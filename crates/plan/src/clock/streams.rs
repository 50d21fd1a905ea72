//! The simulated streams of a rank: when each is free, and what the compute stream does or waits for.

use std::collections::VecDeque;

use device::{LoggedEvent, StreamKind};
use telemetry::Phase;

/// Reason why the compute stream is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Idle {
    /// The host has not made the next call.
    Host,
    /// Reduction of gradients, or all-gather of weights.
    Reduction,
    /// Another stage of the pipeline.
    Pipeline,
    /// An exchange with tensor-parallel ranks.
    Layers,
    /// An exchange with context-parallel ranks.
    Sequences,
    Inputs,
    /// Copies of offloaded tensors.
    Offload,
}

impl Idle {
    /// Returns the usual reason for waiting for work of this stream.
    pub(crate) fn from_stream(stream: StreamKind) -> Self {
        match stream {
            StreamKind::Transfer => Idle::Pipeline,
            // Exchanges along other axes are identified by their ranks.
            StreamKind::Exchange => Idle::Layers,
            StreamKind::Input => Idle::Inputs,
            StreamKind::Reduce | StreamKind::Snapshot | StreamKind::Compute => Idle::Reduction,
        }
    }
}

/// Breakdown of a step on a rank's compute stream, in seconds that add up to the step.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ClockParts {
    /// Seconds of work in each section of the step, by name.
    pub(crate) sections: Vec<(&'static str, f64)>,
    /// Seconds of waiting, by reason.
    pub(crate) idle: Vec<(Idle, f64)>,
    /// Begin and end of each pass in seconds, in order.
    pub(crate) passes: Vec<[f64; 2]>,
}

impl ClockParts {
    /// Returns the seconds of the whole step.
    pub(crate) fn seconds(&self) -> f64 {
        self.idle.iter().fold(self.work(), |sum, (_, seconds)| sum + seconds)
    }

    /// Returns the seconds of work in all sections.
    pub(crate) fn work(&self) -> f64 {
        self.sections.iter().fold(0.0, |sum, (_, seconds)| sum + seconds)
    }

    /// Returns the seconds of work in one section.
    pub(crate) fn section(&self, name: &str) -> f64 {
        self.sections.iter().find(|(other, _)| *other == name).map_or(0.0, |(_, seconds)| *seconds)
    }

    pub(crate) fn wait(&mut self, reason: Idle, seconds: f64) {
        add(&mut self.idle, reason, seconds);
    }

    /// Returns the seconds of waiting for one reason.
    pub(crate) fn idle(&self, reason: Idle) -> f64 {
        self.idle.iter().find(|(other, _)| *other == reason).map_or(0.0, |(_, seconds)| *seconds)
    }
}

fn add<K: PartialEq>(list: &mut Vec<(K, f64)>, key: K, seconds: f64) {
    match list.iter_mut().find(|(other, _)| *other == key) {
        Some((_, sum)) => *sum += seconds,
        None => list.push((key, seconds)),
    }
}

/// Returns whether a section is a forward or backward pass.
fn is_pass(section: &str) -> bool {
    [Phase::Forward, Phase::Backward].into_iter().any(|phase| phase.name() == section)
}

/// Maximum number of events that are kept per stream; waits are for recent ones.
const EVENTS: usize = 4096;

#[derive(Debug, Default)]
struct Stream {
    /// Time at which all work enqueued so far ends.
    free: f64,
    /// Events that later work waits for, in order of increasing time, with the reasons of the waits.
    awaited: Vec<(f64, Idle)>,
    /// Reason for waits on this stream, if not the usual one of its kind.
    reason: Option<Idle>,
    /// Times of the latest events, with the reason of waits for them.
    events: VecDeque<(f64, Option<Idle>)>,
}

impl Stream {
    /// Returns the time at which the next work can begin.
    fn ready(&self) -> f64 {
        self.awaited.last().map_or(self.free, |(time, _)| *time)
    }
}

/// Communication that slows compute while it runs.
#[derive(Debug)]
struct Slowing {
    begin: f64,
    end: f64,
    /// Speed of compute during the communication, as a fraction of its full rate.
    speed: f64,
}

#[derive(Debug, Default)]
pub(super) struct Streams {
    streams: [Stream; StreamKind::ALL.len()],
    /// Communication that may still overlap with compute.
    slowing: Vec<Slowing>,
    section: &'static str,
    /// Whether the current pass has not computed anything yet.
    is_new_pass: bool,
    current: ClockParts,
    last: ClockParts,
}

impl Streams {
    fn stream_mut(&mut self, stream: StreamKind) -> &mut Stream {
        &mut self.streams[stream as usize]
    }

    /// Returns the time at which a stream can begin its next work.
    pub(super) fn ready(&self, stream: StreamKind) -> f64 {
        self.streams[stream as usize].ready()
    }

    /// Returns the time at which all streams are idle.
    pub(super) fn all_ready(&self) -> f64 {
        StreamKind::ALL.into_iter().map(|stream| self.ready(stream)).fold(0.0, f64::max)
    }

    /// Makes later work of a stream wait until `time`.
    pub(super) fn wait_until(&mut self, stream: StreamKind, time: f64, reason: Idle) {
        let stream = self.stream_mut(stream);
        if time > stream.ready() {
            stream.awaited.push((time, reason));
        }
    }

    /// Runs work on a stream that the host has enqueued by time `enqueued`.
    pub(super) fn run(&mut self, stream: StreamKind, enqueued: f64, seconds: f64) {
        let own = self.stream_mut(stream);
        let mut before = own.free;
        let ready = own.ready();
        let waits = std::mem::take(&mut own.awaited);
        let begin = ready.max(enqueued);
        if stream != StreamKind::Compute {
            own.free = begin + seconds;
            return;
        }
        let seconds = seconds + self.slowed(begin, seconds);
        self.stream_mut(stream).free = begin + seconds;
        for (time, reason) in waits {
            add(&mut self.current.idle, reason, time - before);
            before = time;
        }
        add(&mut self.current.idle, Idle::Host, begin - ready);
        add(&mut self.current.sections, self.section, seconds);
        if !is_pass(self.section) {
            return;
        }
        let end = begin + seconds;
        match self.current.passes.last_mut().filter(|_| !self.is_new_pass) {
            Some(pass) => pass[1] = end,
            None => self.current.passes.push([begin, end]),
        }
        self.is_new_pass = false;
    }

    /// Slows compute to `speed` of its full rate during the last `seconds` of a stream's work.
    pub(super) fn slow_compute(&mut self, stream: StreamKind, seconds: f64, speed: f64) {
        let end = self.stream_mut(stream).free;
        self.slowing.push(Slowing { begin: end - seconds, end, speed });
    }

    /// Returns the extra seconds that overlapping communication costs `seconds` of compute that start at
    /// `begin`.
    fn slowed(&mut self, begin: f64, seconds: f64) -> f64 {
        let mut longer = 0.0;
        for call in &mut self.slowing {
            call.begin = call.begin.max(begin);
            let left = begin + seconds + longer - call.begin;
            if left > 0.0 && call.begin < call.end {
                let beside = (call.end - call.begin).min(left / call.speed);
                longer += beside * (1.0 - call.speed);
                call.begin += beside;
            }
        }
        self.slowing.retain(|call| call.begin < call.end);
        longer
    }

    /// Sets the reason of waits for a stream's later work.
    pub(super) fn set_reason(&mut self, stream: StreamKind, reason: Option<Idle>) {
        self.stream_mut(stream).reason = reason;
    }

    pub(super) fn record(&mut self, stream: StreamKind, enqueued: f64) {
        let time = self.ready(stream).max(enqueued);
        let Stream { reason, events, .. } = self.stream_mut(stream);
        events.push_front((time, *reason));
        events.truncate(EVENTS);
    }

    /// Returns the time of an event and the reason of waits for it; 0 for events before the simulation.
    pub(super) fn event(&self, LoggedEvent { stream, later }: LoggedEvent) -> (f64, Idle) {
        let index = usize::try_from(later).unwrap_or(usize::MAX);
        let event = self.streams[stream as usize].events.get(index);
        let (time, reason) = event.copied().unwrap_or((0.0, None));
        // Sums in the pipeline's phase are over stages, whose wait is mostly for other stages' last passes.
        let over_stages = stream == StreamKind::Reduce && self.section == Phase::Pipeline.name();
        let usual = if over_stages { Idle::Pipeline } else { Idle::from_stream(stream) };
        (time, reason.unwrap_or(usual))
    }

    pub(super) fn section(&mut self, name: &'static str) {
        self.section = name;
        self.is_new_pass = true;
    }

    /// Returns the breakdown of the current step so far.
    pub(super) fn current(&self) -> ClockParts {
        self.current.clone()
    }

    /// Advances all streams by `seconds`, and adds the work since `before` another `times` times.
    pub(super) fn repeat(&mut self, seconds: f64, times: f64, before: &ClockParts) {
        for call in &mut self.slowing {
            (call.begin, call.end) = (call.begin + seconds, call.end + seconds);
        }
        for Stream { free, awaited, events, .. } in &mut self.streams {
            *free += seconds;
            awaited.iter_mut().for_each(|(time, _)| *time += seconds);
            events.iter_mut().for_each(|(time, _)| *time += seconds);
        }
        for (name, sum) in &mut self.current.sections {
            *sum += times * (*sum - before.section(name));
        }
        for (reason, sum) in &mut self.current.idle {
            *sum += times * (*sum - before.idle(*reason));
        }
    }

    pub(super) fn end_step(&mut self) -> f64 {
        self.last = std::mem::take(&mut self.current);
        self.streams[StreamKind::Compute as usize].free
    }

    pub(super) fn parts(&self) -> ClockParts {
        self.last.clone()
    }
}
