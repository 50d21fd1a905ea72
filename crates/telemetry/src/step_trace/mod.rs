//! A trace of a training step: the blocks alive at its start, then every allocation and free with its owner
//! and phase.
//!
//! A trace is read from the allocator's history of a run or a plan ([`StepTrace::read`]). It yields the bytes
//! by category over the step ([`StepTrace::curve`]), the peak ([`StepTrace::peak`]), the blocks alive at any
//! event ([`StepTrace::live_after`]), and the first difference from another trace
//! ([`StepTrace::difference`]).
//!
//! ```
//! use memory::{Allocator, Category, Settings, Stream, Tag, drivers::Counting};
//! use telemetry::step_trace::{RunPart, StepTrace};
//!
//! let mut allocator = Allocator::new(Counting::new(1 << 30), Settings::default())?;
//! let weights = allocator.allocate(4 << 20, Stream(0), Tag::with_category(Category::Parameter))?;
//! allocator.record_history(1000);
//! allocator.mark(RunPart::Step.name(), 1);
//! allocator.mark("forward", 0);
//! let hidden = allocator.allocate(1 << 20, Stream(0), Tag::with_category(Category::Activation))?;
//! allocator.free(hidden.block)?;
//!
//! let trace = StepTrace::read(&allocator.snapshot()).ok_or("the history does not go back to the mark")?;
//! let peak = trace.peak();
//! assert_eq!((peak.bytes, peak.phase.as_str()), (5 << 20, "forward"));
//! assert_eq!(trace.live_after(peak.events).by_category().get(Category::Parameter), 4 << 20);
//! # allocator.free(weights.block)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use memory::Category;
use serde::{Deserialize, Serialize};

mod curve;
mod difference;
mod divergence;
mod file;
mod live;
mod read;
mod states;
#[cfg(test)]
mod tests;

pub use curve::{Curve, Peak, Point, Span};
pub(crate) use difference::words;
pub use difference::{Difference, DifferenceKind};
pub use divergence::{Divergence, Figures, Outlived};
pub use file::{RankTraces, TracePair};
pub(crate) use live::without_numbers;
pub use live::{Holding, LiveSet};
pub use states::{PhaseState, StepStates, Transition};

/// Name of the mark at the start of a micro-batch, whose index is the mark's number.
pub const MICRO_BATCH: &str = "micro_batch";
/// Name of the mark at the start of a pipeline stage, whose index is the mark's number. Stage 0 needs no
/// mark.
pub const STAGE: &str = "stage";

system::names! {
    /// A part of a run. A mark with its name begins it; the mark's number is the step.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum RunPart {
        /// Everything before the first step: parameters, gradient buckets, optimizer state.
        Start = "start",
        /// A training step.
        Step = "step",
        /// The validation after a step.
        Validation = "validation",
        /// The repetition of a micro-batch before a verified step.
        Verification = "verification",
        /// The reference model's scoring of answers, before the first step.
        Reference = "reference",
    }
}

impl RunPart {
    /// Describes the part: `step 3`, `the validation after step 3`, `the start`.
    #[must_use]
    pub fn of_step(self, step: u64) -> String {
        match self {
            RunPart::Start => "the start".to_owned(),
            RunPart::Step => format!("step {step}"),
            RunPart::Validation => format!("the validation after step {step}"),
            RunPart::Verification => format!("the verification before step {step}"),
            RunPart::Reference => "the scores of the reference model".to_owned(),
        }
    }

    /// Returns the part that begins at a mark named `name`.
    fn of_mark(name: &str) -> Option<RunPart> {
        RunPart::ALL.into_iter().find(|part| part.name() == name)
    }
}

/// Owner of an allocation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// Category of the allocation.
    pub category: Category,
    /// Module that allocates; empty outside of modules.
    pub module: String,
    /// Operator that allocates.
    pub operator: String,
    /// Stream that uses the block.
    pub stream: u64,
}

/// A block alive at the start of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Held {
    /// Index into [`StepTrace::owners`].
    pub owner: usize,
    /// Requested bytes.
    pub requested: u64,
    /// Bytes of the block.
    pub bytes: u64,
    /// Step of the allocation, from 1; 0 before the first step.
    pub since: u64,
}

/// An event of the allocator. Blocks are numbered: [`StepTrace::held`] first, then allocated blocks in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "(u8, u64, u64, u64)", try_from = "(u8, u64, u64, u64)")]
pub enum TraceEvent {
    /// A block was allocated.
    Allocate {
        /// Index into [`StepTrace::owners`].
        owner: usize,
        /// Requested bytes.
        requested: u64,
        /// Bytes of the block.
        bytes: u64,
    },
    /// A block was freed.
    Free {
        /// Number of the block.
        block: usize,
    },
    /// Memory was taken from the driver or returned to it.
    Driver {
        /// Index of the owner whose allocation caused the call, into [`StepTrace::owners`].
        owner: usize,
        /// Bytes taken.
        taken: u64,
        /// Bytes returned.
        returned: u64,
    },
}

impl From<TraceEvent> for (u8, u64, u64, u64) {
    fn from(event: TraceEvent) -> Self {
        match event {
            TraceEvent::Allocate { owner, requested, bytes } => (0, owner as u64, requested, bytes),
            TraceEvent::Free { block } => (1, block as u64, 0, 0),
            TraceEvent::Driver { owner, taken, returned } => (2, owner as u64, taken, returned),
        }
    }
}

impl TryFrom<(u8, u64, u64, u64)> for TraceEvent {
    type Error = String;

    fn try_from((kind, first, second, third): (u8, u64, u64, u64)) -> Result<Self, String> {
        let index = usize::try_from(first).map_err(|error| error.to_string())?;
        match kind {
            0 => Ok(TraceEvent::Allocate { owner: index, requested: second, bytes: third }),
            1 => Ok(TraceEvent::Free { block: index }),
            2 => Ok(TraceEvent::Driver { owner: index, taken: second, returned: third }),
            other => Err(format!("there is no event of kind {other}")),
        }
    }
}

/// The start of a phase, of a micro-batch ([`MICRO_BATCH`]) or of a stage ([`STAGE`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Number of events before the mark.
    pub events: usize,
    /// Name of the section that starts.
    pub name: String,
    /// Number of the section that starts.
    pub number: u64,
}

/// The allocator's events in one part of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepTrace {
    /// The part.
    pub part: RunPart,
    /// Step, from 1; for a validation, the step before it; 0 for the start.
    pub step: u64,
    /// Owners of all blocks and driver calls.
    pub owners: Vec<Owner>,
    /// Blocks alive at the start, sorted by owner and size.
    pub held: Vec<Held>,
    /// Bytes reserved at the start.
    pub reserved: u64,
    /// Events, in order.
    pub events: Vec<TraceEvent>,
    /// Marks, in order.
    pub marks: Vec<Mark>,
    /// Number of allocations that a plan omitted from `events` because they repeat earlier ones; 0 for a run.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl StepTrace {
    /// Returns whether two traces have the same blocks, events and marks; their steps may differ.
    #[must_use]
    pub fn repeats(&self, other: &StepTrace) -> bool {
        let what = |trace: &StepTrace| (trace.part, trace.reserved, trace.left_out);
        what(self) == what(other)
            && self.owners == other.owners
            && self.held == other.held
            && self.events == other.events
            && self.marks == other.marks
    }

    fn blocks(&self) -> Vec<Held> {
        let mut blocks = self.held.clone();
        for event in &self.events {
            if let TraceEvent::Allocate { owner, requested, bytes } = *event {
                blocks.push(Held { owner, requested, bytes, since: self.step });
            }
        }
        blocks
    }
}
