//! The planned memory of a rank, part by part, with which the run is compared.

use std::collections::BTreeMap;
use std::sync::Arc;

use device::Device;
use telemetry::step_trace::{Figures, LiveSet, Outlived, Peak, RunPart, StepTrace, TraceEvent};

use crate::covered::CoveredPages;
use crate::effects::StepEffects;
use crate::outlived::GraphCheck;
use crate::preallocation::Preallocation;

/// Most events of a part that a plan records by default; a longer part has no trace.
pub const PLANNED_EVENTS: usize = 1 << 24;

/// Events that a run without a plan records.
pub const UNPLANNED_EVENTS: usize = 1 << 17;

/// Number of consecutive steps or validations with growing memory after which memory is assumed to grow
/// without end.
const GROWING: u32 = 4;

/// A part of a planned run.
#[derive(Clone, Debug)]
pub struct PlannedPart {
    /// The part.
    pub part: RunPart,
    /// The step, from 1; for a validation, the step before it; 0 for the start.
    pub step: u64,
    /// The allocator's counters after the part, and its number of allocations.
    pub figures: Figures,
    /// The allocator's events in the part. Repeated parts share a trace, which has the step of the first.
    pub trace: Arc<StepTrace>,
}

/// The planned parts of one rank's run: the start, and the steps until they repeat.
#[derive(Clone, Debug, Default)]
pub struct PlannedParts {
    parts: Vec<PlannedPart>,
    handed_out: u64,
    /// Allocations skipped by the worker because they repeat others.
    skipped: u64,
    /// The memory that the rank reserves before anything else.
    pub preallocation: Vec<Preallocation>,
    /// The effects of steps, if the cache is emptied between some.
    pub effects: Option<StepEffects>,
    graph: GraphCheck,
    /// Where blocks have lain, on a rank that computes on the host.
    covered: CoveredPages,
    /// Number of consecutive parts, by kind, that left more memory allocated than before.
    growing: [u32; 5],
}

/// The planned parts, by rank.
pub type Expected = BTreeMap<usize, Arc<PlannedParts>>;

/// The peak of a planned run.
#[derive(Clone, Debug)]
pub struct PlannedPeak {
    /// The first part that reaches the peak; for a rehearsed step, the step.
    pub part: RunPart,
    /// The step, from 1; 0 for the start.
    pub step: u64,
    /// The position of the peak in the part, and the allocation that reached it.
    pub peak: Peak,
    /// Allocations that are alive at the peak.
    pub live: LiveSet,
}

impl PlannedParts {
    /// Adds the part that `device` has just completed, and restarts its history of `most` events.
    /// `skipped` is the number of allocations skipped so far by its worker. Returns the part's index.
    pub fn add(&mut self, device: &Device, skipped: u64, part: RunPart, step: u64, most: usize) -> usize {
        let left_out = skipped - std::mem::replace(&mut self.skipped, skipped);
        let before = self.handed_out;
        let covered = (!device.is_cuda_like()).then_some(&mut self.covered);
        let (figures, handed_out, trace) = device.with_allocator(|allocator| {
            let statistics = allocator.statistics();
            let mut figures = Figures::of(statistics, before);
            let handed_out = statistics.handed_out();
            figures.allocations += left_out;
            let snapshot = allocator.snapshot_of_blocks();
            let events = allocator.events();
            if let Some(covered) = covered {
                covered.follow(events);
            }
            let trace = StepTrace::read_events(&snapshot, events);
            allocator.record_history(most);
            (figures, handed_out, trace.unwrap_or_else(|| StepTrace::of_now(&snapshot, part, step)))
        });
        self.handed_out = handed_out;
        let trace = StepTrace { left_out, ..trace };
        let left = self.graph.left();
        self.graph.check(device, part, step, || trace.clone());
        let growing = &mut self.growing[part as usize];
        *growing = if self.graph.left() > left { *growing + 1 } else { 0 };
        let earlier = self.parts.iter().rev().find(|other| other.part == part);
        let trace = match earlier.filter(|earlier| earlier.trace.repeats(&trace)) {
            Some(earlier) => Arc::clone(&earlier.trace),
            None => Arc::new(trace),
        };
        self.parts.push(PlannedPart { part, step, figures, trace });
        self.parts.len() - 1
    }

    /// Every planned part; later parts of a kind repeat the figures of the last.
    pub fn list(&self) -> &[PlannedPart] {
        &self.parts
    }

    /// Allocations of a step's graph that outlive the step, if any.
    pub fn outlived(&self) -> Option<&Outlived> {
        self.graph.outlived()
    }

    /// Returns whether steps allocate more and more memory, so that no later step equals the last planned
    /// one.
    pub fn grows(&self) -> bool {
        self.growing.iter().any(|parts| *parts >= GROWING)
    }

    /// Returns the plan of a part, where the cache is never emptied: its own, or that of the last part of its
    /// kind, which it repeats.
    pub fn at(&self, part: RunPart, step: u64) -> Option<(Figures, &Arc<StepTrace>)> {
        let last = self.parts.iter().rev().find(|other| other.part == part && other.step <= step)?;
        if last.step == step {
            return Some((last.figures, &last.trace));
        }
        if self.grows() {
            return None;
        }
        // Peaks continue over parts of another kind.
        let latest = self.parts.iter().rev().find(|other| other.step <= step)?;
        Some((Figures { allocations: last.figures.allocations, ..latest.figures }, &last.trace))
    }

    /// The first step that all later ones repeat.
    pub fn steady(&self) -> Option<&PlannedPart> {
        let last = self.parts.iter().rev().find(|other| other.part == RunPart::Step)?;
        self.parts.iter().find(|other| Arc::ptr_eq(&other.trace, &last.trace))
    }

    /// Returns the peak of allocated bytes.
    pub fn peak(&self) -> Option<PlannedPeak> {
        let most = self.parts.last()?.figures.peak_allocated_bytes;
        let mut candidates =
            self.parts.iter().map(|part| (part, part.trace.peak())).filter(|(_, peak)| peak.bytes == most);
        // A step rehearsed at the start reaches the same peak.
        let first = candidates.next()?;
        let (reached, peak) = match first.0.part {
            RunPart::Start => candidates.find(|(part, _)| part.part == RunPart::Step).unwrap_or(first),
            _ => first,
        };
        let live = reached.trace.live_after(peak.events);
        Some(PlannedPeak { part: reached.part, step: reached.step, peak, live })
    }

    /// The most bytes of host memory that the blocks of a rank take which computes on the host: those of the
    /// pages on which blocks lie, or all that is taken beforehand.
    pub fn resident_bytes(&self) -> u64 {
        let taken = self.preallocation.iter().map(|segment| segment.bytes).sum();
        self.covered.peak().max(taken)
    }

    /// Bytes of the traces, which the run's process keeps.
    pub fn trace_bytes(&self) -> u64 {
        let mut traces: Vec<_> = self.parts.iter().map(|part| &part.trace).collect();
        traces.dedup_by(|later, earlier| Arc::ptr_eq(later, earlier));
        let bytes = |trace: &&Arc<StepTrace>| trace.events.len() * size_of::<TraceEvent>();
        traces.iter().map(bytes).sum::<usize>() as u64
    }

    /// Number of events that a run must record to have all of any part, even if it has grown: an allocation
    /// is one event, a free two.
    pub fn events_to_keep(&self) -> usize {
        let events = |part: &PlannedPart| 2 * part.trace.events.len() + part.trace.marks.len();
        2 * self.parts.iter().map(events).max().unwrap_or(0) + 4096
    }
}
