//! The planned memory of a rank, by part of the run: the start, steps and validations.

use std::collections::BTreeMap;
use std::sync::Arc;

use device::Device;
use telemetry::step_trace::{Figures, LiveSet, Outlived, Peak, RunPart, StepTrace, TraceEvent};

use crate::covered::CoveredPages;
use crate::effects::StepEffects;
use crate::outlived::GraphCheck;
use crate::preallocation::Preallocation;

/// Default maximum number of events of a part that a plan records; a longer part has no trace.
pub const PLANNED_EVENTS: usize = 1 << 24;

/// Maximum number of events that a run without a plan records.
pub const UNPLANNED_EVENTS: usize = 1 << 17;

/// Memory is assumed to grow without end if it grows in this many consecutive steps or validations.
const GROWING: u32 = 4;

/// A part of a planned run.
#[derive(Clone, Debug)]
pub struct PlannedPart {
    /// Kind of the run part.
    pub part: RunPart,
    /// The step, from 1; for a validation, the step before it; 0 for the start.
    pub step: u64,
    /// The allocator's counters after the part, and the part's number of allocations.
    pub figures: Figures,
    /// The allocator's events in the part. Repeated parts share the trace of the first.
    pub trace: Arc<StepTrace>,
}

/// The planned parts of one rank's run: the start, and the steps until they repeat.
#[derive(Clone, Debug, Default)]
pub struct PlannedParts {
    parts: Vec<PlannedPart>,
    handed_out: u64,
    /// Number of allocations that the worker skipped because they repeat others.
    skipped: u64,
    /// Segments that the rank reserves before anything else.
    pub preallocation: Vec<Preallocation>,
    /// Effects of steps, if the cache is emptied between some.
    pub effects: Option<StepEffects>,
    graph: GraphCheck,
    /// Pages that blocks have used, on a rank that computes on the CPU.
    covered: CoveredPages,
    /// Number of consecutive parts of each kind that left more memory allocated than before.
    growing: [u32; 5],
}

/// Planned parts of each rank, by rank.
pub type Expected = BTreeMap<usize, Arc<PlannedParts>>;

/// The peak of a planned run.
#[derive(Clone, Debug)]
pub struct PlannedPeak {
    /// The first part that reaches the peak. If the rehearsed step at the start reaches it, this is the first
    /// step.
    pub part: RunPart,
    /// The step, from 1; 0 for the start.
    pub step: u64,
    /// The moment of the peak within the part, and the allocation that reached it.
    pub peak: Peak,
    /// Allocations that are alive at the peak.
    pub live: LiveSet,
}

impl PlannedParts {
    /// Adds the part that `device` has just completed, and restarts its history with up to `most` events.
    /// `skipped` is the number of allocations that its worker has skipped so far. Returns the part's index.
    pub fn add(&mut self, device: &Device, skipped: u64, part: RunPart, step: u64, most: usize) -> usize {
        let left_out = skipped - std::mem::replace(&mut self.skipped, skipped);
        let before = self.handed_out;
        let covered = (!device.is_cuda_like()).then_some(&mut self.covered);
        let (figures, handed_out, trace) = device.with_allocator(|allocator| {
            let statistics = allocator.statistics();
            let mut figures = Figures::from_statistics(statistics, before);
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

    /// Returns all planned parts. Later parts of a kind repeat the last one's figures.
    pub fn list(&self) -> &[PlannedPart] {
        &self.parts
    }

    /// Returns allocations of a step's graph that outlive the step, if any.
    pub fn outlived(&self) -> Option<&Outlived> {
        self.graph.outlived()
    }

    /// Returns whether steps allocate more and more memory, so that no later step equals the last planned
    /// step.
    pub fn grows(&self) -> bool {
        self.growing.iter().any(|parts| *parts >= GROWING)
    }

    /// Returns the planned figures and trace of a part, if the cache is never emptied. A part after the
    /// planned ones repeats the last part of its kind.
    pub fn at(&self, part: RunPart, step: u64) -> Option<(Figures, &Arc<StepTrace>)> {
        let last = self.parts.iter().rev().find(|other| other.part == part && other.step <= step)?;
        if last.step == step {
            return Some((last.figures, &last.trace));
        }
        if self.grows() {
            return None;
        }
        // Peaks are cumulative over parts of all kinds.
        let latest = self.parts.iter().rev().find(|other| other.step <= step)?;
        Some((Figures { allocations: last.figures.allocations, ..latest.figures }, &last.trace))
    }

    /// Returns the first step that all later steps repeat.
    pub fn steady(&self) -> Option<&PlannedPart> {
        let last = self.parts.iter().rev().find(|other| other.part == RunPart::Step)?;
        self.parts.iter().find(|other| Arc::ptr_eq(&other.trace, &last.trace))
    }

    /// Returns the peak of allocated bytes.
    pub fn peak(&self) -> Option<PlannedPeak> {
        let most = self.parts.last()?.figures.peak_allocated_bytes;
        let mut candidates =
            self.parts.iter().map(|part| (part, part.trace.peak())).filter(|(_, peak)| peak.bytes == most);
        // A rehearsed step at the start reaches the same peak.
        let first = candidates.next()?;
        let (reached, peak) = match first.0.part {
            RunPart::Start => candidates.find(|(part, _)| part.part == RunPart::Step).unwrap_or(first),
            _ => first,
        };
        let live = reached.trace.live_after(peak.events);
        Some(PlannedPeak { part: reached.part, step: reached.step, peak, live })
    }

    /// Returns the maximum resident bytes of a CPU rank's blocks: the pages that blocks have used, or the
    /// preallocated bytes if larger.
    pub fn resident_bytes(&self) -> u64 {
        let taken = self.preallocation.iter().map(|segment| segment.bytes).sum();
        self.covered.peak().max(taken)
    }

    /// Returns the bytes of the traces, which stay in the run's process.
    pub fn trace_bytes(&self) -> u64 {
        let mut traces: Vec<_> = self.parts.iter().map(|part| &part.trace).collect();
        traces.dedup_by(|later, earlier| Arc::ptr_eq(later, earlier));
        let bytes = |trace: &&Arc<StepTrace>| trace.events.len() * size_of::<TraceEvent>();
        traces.iter().map(bytes).sum::<usize>() as u64
    }

    /// Returns the number of events that a run must record to have any part in full, with some reserve for
    /// growth: an allocation is one event, a free is two.
    pub fn events_to_keep(&self) -> usize {
        let events = |part: &PlannedPart| 2 * part.trace.events.len() + part.trace.marks.len();
        2 * self.parts.iter().map(events).max().unwrap_or(0) + 4096
    }
}
