//! Memory over a step: bytes by category after every event, and their peak.

use memory::CategoryBytes;
use serde::{Deserialize, Serialize};

use super::{MICRO_BATCH, Owner, STAGE, StepTrace, TraceEvent};

/// Memory after some number of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// Number of events; 0 for the start of the trace.
    pub events: usize,
    /// Bytes of allocated blocks by category.
    pub bytes: CategoryBytes,
    /// Bytes reserved from the driver.
    pub reserved: u64,
}

/// Consecutive events in one phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Number of events before the span.
    pub from: usize,
    /// Number of events up to the span's end; more than `from`.
    pub to: usize,
    /// Name of the phase; in parts of a run without phases, the name of the part.
    pub phase: String,
    /// Index of the micro-batch in the rank's step.
    pub micro_batch: Option<u64>,
    /// Pipeline stage, unless it is the first.
    pub stage: Option<u64>,
}

/// Memory over a step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Curve {
    /// Points in the order of events; the first is the start.
    pub points: Vec<Point>,
    /// Phases that contain events, in order.
    pub spans: Vec<Span>,
}

/// The peak of allocated bytes, at its first occurrence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peak {
    /// Bytes of allocated blocks.
    pub bytes: u64,
    /// Number of events up to the peak; 0 if the peak is at the start.
    pub events: usize,
    /// Phase of the peak.
    pub phase: String,
    /// Micro-batch of the peak.
    pub micro_batch: Option<u64>,
    /// Pipeline stage of the peak, unless it is the first.
    pub stage: Option<u64>,
    /// Owner of the allocation that reached the peak; `None` at the start.
    pub owner: Option<Owner>,
    /// Bytes requested by the allocation that reached the peak; 0 at the start.
    pub requested: u64,
}

impl StepTrace {
    /// Returns the bytes by category and the reserved bytes, at the start and after every event.
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

    /// Returns the phases that contain events, in order.
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

    /// Returns the peak of allocated bytes.
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
        let reached = events.checked_sub(1).and_then(|index| self.events.get(index));
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
    /// Reduces the curve to about `count` points for drawing: both ends, and the highest point of each
    /// interval of equal length.
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

    /// Returns the peak of reserved bytes.
    #[must_use]
    pub fn peak_reserved(&self) -> u64 {
        self.points.iter().map(|point| point.reserved).max().unwrap_or(0)
    }
}
