//! One step in the allocator's own events: what lived when it began, what was then asked for and given back, by whom, and in
//! which phase.
//!
//! A trace is read from an allocator's history ([`StepTrace::read`]), of a run or of its plan alike, and answers where the
//! memory went: bytes by category over the step ([`StepTrace::curve`]), where the peak stands ([`StepTrace::peak`]), what is
//! alive at any moment ([`StepTrace::live_after`]), and where two traces part ([`StepTrace::difference`]).
//!
//! ```
//! use memory::{Allocator, Category, Settings, Stream, Tag, drivers::Counting};
//! use telemetry::step_trace::{RunPart, StepTrace};
//!
//! let mut allocator = Allocator::new(Counting::new(1 << 30), Settings::default())?;
//! let weights = allocator.allocate(4 << 20, Stream(0), Tag::of(Category::Parameter))?;
//! allocator.record_history(1000);
//! allocator.mark(RunPart::Step.name(), 1);
//! allocator.mark("forward", 0);
//! let hidden = allocator.allocate(1 << 20, Stream(0), Tag::of(Category::Activation))?;
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
#[cfg(test)]
mod tests;

pub use curve::{Curve, Peak, Point, Span};
pub(crate) use difference::words;
pub use difference::{Difference, DifferenceKind};
pub use divergence::{Divergence, Figures, Outlived};
pub use file::{RankTraces, TracePair};
pub(crate) use live::without_numbers;
pub use live::{Holding, LiveSet};

/// The mark of a micro-batch, whose number is the mark's.
pub const MICRO_BATCH: &str = "micro_batch";
/// The mark of a pipeline stage, whose number is the mark's; without one it is the first.
pub const STAGE: &str = "stage";

/// A part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunPart {
    /// All before the first step: parameters, their gradients' buckets, the optimizer's state.
    Start,
    /// A training step.
    Step,
    /// The validation that follows a step.
    Validation,
}

impl RunPart {
    /// The mark that it begins with; the mark's number is the step.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            RunPart::Start => "start",
            RunPart::Step => "step",
            RunPart::Validation => "validation",
        }
    }

    /// In words: `step 3`, `the validation after step 3`, `the start`.
    #[must_use]
    pub fn of_step(self, step: u64) -> String {
        match self {
            RunPart::Start => "the start".to_owned(),
            RunPart::Step => format!("step {step}"),
            RunPart::Validation => format!("the validation after step {step}"),
        }
    }

    /// The part that a mark begins.
    fn of_mark(name: &str) -> Option<RunPart> {
        [RunPart::Start, RunPart::Step, RunPart::Validation].into_iter().find(|part| part.name() == name)
    }
}

/// Who asks for memory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// What it is for.
    pub category: Category,
    /// The module that asks; empty outside of modules.
    pub module: String,
    /// The operator that asks.
    pub operator: String,
    /// The stream whose work uses it.
    pub stream: u64,
}

/// A block that was alive when the trace began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Held {
    /// Place in [`StepTrace::owners`].
    pub owner: usize,
    /// Bytes asked for.
    pub requested: u64,
    /// Bytes of the block.
    pub bytes: u64,
    /// The step in which it was asked for, from 1; 0 before the first.
    pub since: u64,
}

/// An event of the allocator. Blocks are numbered: those of [`StepTrace::held`] first, then those that are allocated, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "(u8, u64, u64, u64)", try_from = "(u8, u64, u64, u64)")]
pub enum TraceEvent {
    /// A block was handed out.
    Allocate {
        /// Place in [`StepTrace::owners`].
        owner: usize,
        /// Bytes asked for.
        requested: u64,
        /// Bytes of the block.
        bytes: u64,
    },
    /// A block came back.
    Free {
        /// Its number.
        block: usize,
    },
    /// Memory was taken from the driver, or given back to it.
    Driver {
        /// For whom, a place in [`StepTrace::owners`].
        owner: usize,
        /// Bytes taken.
        taken: u64,
        /// Bytes given back.
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
        let place = usize::try_from(first).map_err(|error| error.to_string())?;
        match kind {
            0 => Ok(TraceEvent::Allocate { owner: place, requested: second, bytes: third }),
            1 => Ok(TraceEvent::Free { block: place }),
            2 => Ok(TraceEvent::Driver { owner: place, taken: second, returned: third }),
            other => Err(format!("there is no event of kind {other}")),
        }
    }
}

/// Something begins here: a phase by its name, or what [`MICRO_BATCH`] and [`STAGE`] say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Events before it.
    pub events: usize,
    /// What begins.
    pub name: String,
    /// The number of it.
    pub number: u64,
}

/// What the allocator did in one part of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepTrace {
    /// Which part.
    pub part: RunPart,
    /// The step, from 1; of a validation the one that it follows; 0 for the start.
    pub step: u64,
    /// Who asked for anything here.
    pub owners: Vec<Owner>,
    /// What was alive at its beginning, in the order of owners and sizes.
    pub held: Vec<Held>,
    /// Bytes held from the driver at its beginning.
    pub reserved: u64,
    /// What happened, in order.
    pub events: Vec<TraceEvent>,
    /// What began when.
    pub marks: Vec<Mark>,
}

impl StepTrace {
    /// Whether the same happened in another step: blocks, events and marks, apart from the step's number.
    #[must_use]
    pub fn repeats(&self, other: &StepTrace) -> bool {
        let what = |trace: &StepTrace| (trace.part, trace.reserved);
        what(self) == what(other)
            && self.owners == other.owners
            && self.held == other.held
            && self.events == other.events
            && self.marks == other.marks
    }

    /// Owner, bytes asked for, bytes of the block and the step it is from, of every block by its number.
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
