//! Reports about a rank whose memory differs from its plan, and about activations that outlive their step.

use std::fmt;

use memory::Statistics;
use serde::{Deserialize, Serialize};

use super::{Difference, LiveSet, RunPart};
use crate::units::{bytes, grouped};

/// Allocator counters that are compared with the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Bytes of allocated blocks.
    pub allocated_bytes: u64,
    /// Bytes reserved from the driver.
    pub reserved_bytes: u64,
    /// Peak of allocated bytes.
    pub peak_allocated_bytes: u64,
    /// Peak of reserved bytes.
    pub peak_reserved_bytes: u64,
    /// Number of allocations in this part of the run.
    pub allocations: u64,
}

impl Figures {
    /// Reads the counters of an allocator that had made `before` allocations when the part began.
    #[must_use]
    pub fn from_statistics(statistics: &Statistics, before: u64) -> Self {
        Figures {
            allocated_bytes: statistics.allocated(),
            reserved_bytes: statistics.reserved(),
            peak_allocated_bytes: statistics.peak_allocated(),
            peak_reserved_bytes: statistics.peak_reserved(),
            allocations: statistics.handed_out().saturating_sub(before),
        }
    }

    fn named(&self) -> [(&'static str, u64); 5] {
        [
            ("allocated bytes", self.allocated_bytes),
            ("reserved bytes", self.reserved_bytes),
            ("bytes at the peak of allocated", self.peak_allocated_bytes),
            ("bytes at the peak of reserved", self.peak_reserved_bytes),
            ("allocations", self.allocations),
        ]
    }
}

/// The first part of a run in which a rank's memory differs from its plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Divergence {
    /// The rank.
    pub rank: usize,
    /// The part of the run.
    pub part: RunPart,
    /// Step of the part, from 1; 0 for the start.
    pub step: u64,
    /// Measured counters after the part.
    pub measured: Figures,
    /// Planned counters after the part.
    pub planned: Figures,
    /// The first event that differs; `None` if the history does not reach back to the start of the part, or
    /// if only counters differ.
    pub first: Option<Difference>,
    /// Blocks alive at the end of the part but not in the plan, oldest first.
    pub kept: LiveSet,
    /// Number of parts that differ from the plan, including this one.
    pub parts: u64,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} leaves its plan in {}: ", self.rank, self.part.of_step(self.step))?;
        let both = self.measured.named().into_iter().zip(self.planned.named());
        let differ = both.filter(|((_, measured), (_, planned))| measured != planned);
        let parts = differ.map(|((name, measured), (_, planned))| {
            format!("{} {name} instead of {}", grouped(measured), grouped(planned))
        });
        write!(f, "{}", parts.collect::<Vec<_>>().join(", "))?;
        if !self.kept.holdings.is_empty() {
            write!(f, "; {} were still alive after it, and in the plan they are not", self.kept.in_words())?;
        }
        if let Some(first) = &self.first {
            write!(f, "; the first difference: {first}")?;
        }
        Ok(())
    }
}

/// Inputs, activations or activation gradients that are still alive after a part of a run, when its whole
/// graph should be freed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outlived {
    /// The rank.
    pub rank: usize,
    /// The first part that left blocks behind.
    pub part: RunPart,
    /// Step of the part, from 1.
    pub step: u64,
    /// Blocks left behind by that part, oldest first.
    pub kept: LiveSet,
    /// Number of parts that left blocks behind, including this one.
    pub parts: u64,
    /// Step of the latest part that left blocks behind.
    #[serde(default)]
    pub last_step: u64,
    /// Mean number of additional bytes that each later part left behind.
    #[serde(default)]
    pub growth_bytes: u64,
}

impl fmt::Display for Outlived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let index = self.part.of_step(self.step);
        let blocks = match self.kept.in_words().as_str() {
            "" => "tensors".to_owned(),
            words => words.to_owned(),
        };
        write!(f, "rank {}: {blocks} from {index} were still alive ", self.rank)?;
        match (self.last_step > self.step, self.growth_bytes) {
            (false, 0) => write!(f, "after it"),
            (false, growth) => write!(f, "after it (+{} since)", bytes(growth)),
            (true, 0) => write!(f, "at step {}, and no more since", grouped(self.last_step)),
            (true, growth) => write!(f, "at step {} (+{} a step)", grouped(self.last_step), bytes(growth)),
        }
    }
}
