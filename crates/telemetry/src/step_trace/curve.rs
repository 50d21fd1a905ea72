//! Memory over a step: bytes by category after every event, and where they are most.

use memory::CategoryBytes;
use serde::{Deserialize, Serialize};

use super::{MICRO_BATCH, Owner, STAGE, StepTrace, TraceEvent};

/// What there is after so many events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// Events before it: 0 is the beginning of the trace.
    pub events: usize,
    /// Bytes of allocated blocks by category.
    pub bytes: CategoryBytes,
    /// Bytes held from the driver.
    pub reserved: u64,
}

/// A stretch of one phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Events before its first.
    pub from: usize,
    /// Events up to its last; more than `from`.
    pub to: usize,
    /// The phase; a part that has no phases is its own.
    pub phase: String,
    /// The micro-batch, by its number in the rank's step.
    pub micro_batch: Option<u64>,
    /// The pipeline stage, where it is not the first.
    pub stage: Option<u64>,
}

/// Memory over a step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Curve {
    /// In the order of events, the first at the beginning.
    pub points: Vec<Point>,
    /// The phases that have events, in their order.
    pub spans: Vec<Span>,
}

/// The most that was allocated at once, when it was so first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peak {
    /// Bytes of allocated blocks.
    pub bytes: u64,
    /// Events up to it; 0 where the beginning is the peak.
    pub events: usize,
    /// The phase it stands in.
    pub phase: String,
    /// The micro-batch it stands in.
    pub micro_batch: Option<u64>,
    /// The pipeline stage it stands in, where that is not the first.
    pub stage: Option<u64>,
    /// Whose allocation reached it; none at the beginning.
    pub owner: Option<Owner>,
    /// Bytes that this allocation asked for.
    pub requested: u64,
}

impl StepTrace {
    /// Bytes by category and bytes held, at the beginning and after every event.
    #[must_use]
    pub fn curve(&self) -> Curve {
        let blocks = self.blocks();
        let mut now = Point { reserved: self.reserved, ..Point::default() };
        let category = |owner: usize| self.owners.get(owner).map_or(0, |owner| owner.category.index());
        for block in &self.held {
            now.bytes.0[category(block.owner)] += block.bytes;
        }
        let mut points = Vec::with_capacity(self.events.len() + 1);
        points.push(now);
        for event in &self.events {
            now.events += 1;
            match *event {
                TraceEvent::Allocate { owner, bytes, .. } => now.bytes.0[category(owner)] += bytes,
                TraceEvent::Free { block } => {
                    let Some(block) = blocks.get(block) else { continue };
                    let sum = &mut now.bytes.0[category(block.owner)];
                    *sum = sum.saturating_sub(block.bytes);
                }
                TraceEvent::Driver { taken, returned, .. } => {
                    now.reserved = (now.reserved + taken).saturating_sub(returned);
                }
            }
            points.push(now);
        }
        Curve { points, spans: self.spans() }
    }

    /// The phases that have events, in their order.
    #[must_use]
    pub fn spans(&self) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::new();
        let phase = self.part.name().to_owned();
        let mut now = Span { from: 0, to: 0, phase, micro_batch: None, stage: None };
        let mut close = |now: &mut Span, at: usize| {
            if at > now.from {
                spans.push(Span { to: at, ..now.clone() });
            }
            now.from = at;
        };
        for mark in &self.marks {
            close(&mut now, mark.events);
            match mark.name.as_str() {
                MICRO_BATCH => now.micro_batch = Some(mark.number),
                STAGE => now.stage = Some(mark.number).filter(|stage| *stage > 0),
                phase => {
                    phase.clone_into(&mut now.phase);
                }
            }
        }
        close(&mut now, self.events.len());
        spans
    }

    /// Where the most is allocated at once, the first time.
    #[must_use]
    pub fn peak(&self) -> Peak {
        let curve = self.curve();
        let mut top = (0, 0);
        for point in &curve.points {
            let bytes = point.bytes.total();
            if bytes > top.0 {
                top = (bytes, point.events);
            }
        }
        let (bytes, events) = top;
        let span = curve.spans.iter().find(|span| span.from < events && events <= span.to);
        let span = span.or(curve.spans.first());
        let reached = events.checked_sub(1).and_then(|place| self.events.get(place));
        let (owner, requested) = match reached {
            Some(TraceEvent::Allocate { owner, requested, .. }) => (self.owners.get(*owner), *requested),
            _ => (None, 0),
        };
        Peak {
            bytes,
            events,
            phase: span.map_or_else(|| self.part.name().to_owned(), |span| span.phase.clone()),
            micro_batch: span.and_then(|span| span.micro_batch),
            stage: span.and_then(|span| span.stage),
            owner: owner.cloned(),
            requested,
        }
    }
}

impl Curve {
    /// At most about `count` points, as many stretches of equal length with the highest point of each, and the ends: what a
    /// picture of that many columns shows.
    #[must_use]
    pub fn thinned(&self, count: usize) -> Curve {
        let length = self.points.len().div_ceil(count.max(1)).max(1);
        let mut points: Vec<Point> = Vec::new();
        points.extend(self.points.first());
        for stretch in self.points.chunks(length) {
            points.extend(stretch.iter().max_by_key(|point| (point.bytes.total(), point.reserved)));
        }
        points.extend(self.points.last());
        points.dedup_by_key(|point| point.events);
        Curve { points, spans: self.spans.clone() }
    }

    /// The most bytes held from the driver.
    #[must_use]
    pub fn peak_reserved(&self) -> u64 {
        self.points.iter().map(|point| point.reserved).max().unwrap_or(0)
    }
}
