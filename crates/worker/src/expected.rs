//! What a rank's memory will be, part of the run by part: the plan's, which the run is held against.

use std::collections::BTreeMap;
use std::sync::Arc;

use device::Device;
use telemetry::step_trace::{Figures, LiveSet, Outlived, Peak, RunPart, StepTrace};

use crate::outlived::GraphCheck;

/// Events of a part that a plan keeps at most; what has more has no trace.
pub const PLANNED_EVENTS: usize = 1 << 24;

/// Events that a run without a plan keeps.
pub const UNPLANNED_EVENTS: usize = 1 << 17;

/// Steps or validations in a row that leave more and more behind, after which there is no end to plan for.
const GROWING: u32 = 4;

/// A part of a planned run.
#[derive(Clone, Debug)]
pub struct PlannedPart {
    /// Which.
    pub part: RunPart,
    /// Its step, from 1; of a validation the one that it follows; 0 for the start.
    pub step: u64,
    /// The counters after it, and its allocations.
    pub figures: Figures,
    /// What the allocator does in it; parts that repeat one another share it, with the step of the first.
    pub trace: Arc<StepTrace>,
}

/// The planned parts of one rank's run: the start, and step after step until they repeat.
#[derive(Clone, Debug, Default)]
pub struct PlannedParts {
    parts: Vec<PlannedPart>,
    handed_out: u64,
    graph: GraphCheck,
    /// By kind, parts in a row that left more than was there before them.
    growing: [u32; 3],
}

/// What is planned, by rank.
pub type Expected = BTreeMap<usize, Arc<PlannedParts>>;

/// Where the peak of a planned run stands.
#[derive(Clone, Debug)]
pub struct PlannedPeak {
    /// In which part, the first that comes to it; of a step and its rehearsal before the first the step.
    pub part: RunPart,
    /// Of which step, from 1; 0 for the start.
    pub step: u64,
    /// Where there, and by whose allocation.
    pub peak: Peak,
    /// What is alive at it.
    pub live: LiveSet,
}

impl PlannedParts {
    /// Adds the part that `device` has just gone through, and lets its history begin anew.
    pub fn add(&mut self, device: &Device, part: RunPart, step: u64) {
        let before = self.handed_out;
        let (figures, handed_out, snapshot) = device.with_allocator(|allocator| {
            let statistics = allocator.statistics();
            let (figures, handed_out) =
                (Figures::of(statistics, before), Figures::allocations_so_far(statistics));
            let snapshot = allocator.snapshot();
            allocator.record_history(PLANNED_EVENTS);
            (figures, handed_out, snapshot)
        });
        self.handed_out = handed_out;
        let trace = StepTrace::read(&snapshot).unwrap_or_else(|| StepTrace::of_now(&snapshot, part, step));
        let left = self.graph.left();
        self.graph.check(device, part, step, || trace.clone());
        let growing = &mut self.growing[part as usize];
        *growing = if self.graph.left() > left { *growing + 1 } else { 0 };
        let known = self.parts.iter().rev().find(|known| known.part == part);
        let trace = match known.filter(|known| known.trace.repeats(&trace)) {
            Some(known) => Arc::clone(&known.trace),
            None => Arc::new(trace),
        };
        self.parts.push(PlannedPart { part, step, figures, trace });
    }

    /// Every part that was planned; from the last of its kind on, they repeat.
    pub fn list(&self) -> &[PlannedPart] {
        &self.parts
    }

    /// What a step leaves of its graph, if any does.
    pub fn outlived(&self) -> Option<&Outlived> {
        self.graph.found()
    }

    /// Whether steps leave more and more behind, so that no later step is like the last planned one.
    pub fn grows(&self) -> bool {
        self.growing.iter().any(|parts| *parts >= GROWING)
    }

    /// What is planned for a part: its own, or the last of its kind, which it then repeats.
    pub fn at(&self, part: RunPart, step: u64) -> Option<(Figures, &Arc<StepTrace>)> {
        let known = self.parts.iter().rev().find(|known| known.part == part && known.step <= step)?;
        if known.step == step {
            return Some((known.figures, &known.trace));
        }
        if self.grows() {
            return None;
        }
        // Peaks run on, also over parts of another kind.
        let latest = self.parts.iter().rev().find(|known| known.step <= step)?;
        Some((Figures { allocations: known.figures.allocations, ..latest.figures }, &known.trace))
    }

    /// The first step that is like those after it.
    pub fn steady(&self) -> Option<&PlannedPart> {
        let last = self.parts.iter().rev().find(|known| known.part == RunPart::Step)?;
        self.parts.iter().find(|known| Arc::ptr_eq(&known.trace, &last.trace))
    }

    /// Where the peak of allocated bytes stands, and what is alive there.
    pub fn peak(&self) -> Option<PlannedPeak> {
        let most = self.parts.last()?.figures.peak_allocated_bytes;
        let mut found =
            self.parts.iter().map(|known| (known, known.trace.peak())).filter(|(_, peak)| peak.bytes == most);
        // A step that is rehearsed in the start comes to the same.
        let first = found.next()?;
        let (reached, peak) = match first.0.part {
            RunPart::Start => found.find(|(known, _)| known.part == RunPart::Step).unwrap_or(first),
            _ => first,
        };
        let live = reached.trace.live_after(peak.events);
        Some(PlannedPeak { part: reached.part, step: reached.step, peak, live })
    }

    /// Events that a run keeps so as to have those of any part, and of one that has grown: an allocation is one, a return two.
    pub fn events_to_keep(&self) -> usize {
        let events = |known: &PlannedPart| 2 * known.trace.events.len() + known.trace.marks.len();
        2 * self.parts.iter().map(events).max().unwrap_or(0) + 4096
    }
}
