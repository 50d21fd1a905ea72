//! What is reported of a rank that leaves its plan, and of a step that leaves something behind.

use std::fmt;

use memory::{Metric, PoolKind, Statistics};
use serde::{Deserialize, Serialize};

use super::{Difference, Holding, LiveSet, RunPart};
use crate::units::grouped;

/// The counters of an allocator that a plan is held against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Bytes of allocated blocks.
    pub allocated_bytes: u64,
    /// Bytes held from the driver.
    pub reserved_bytes: u64,
    /// The most that was ever allocated.
    pub peak_allocated_bytes: u64,
    /// The most that was ever held.
    pub peak_reserved_bytes: u64,
    /// Blocks handed out in this part of the run, given back or not.
    pub allocations: u64,
}

impl Figures {
    /// Of an allocator now, which had handed out so many blocks when the part began.
    #[must_use]
    pub fn of(statistics: &Statistics, before: u64) -> Self {
        Figures {
            allocated_bytes: statistics.allocated(),
            reserved_bytes: statistics.reserved(),
            peak_allocated_bytes: statistics.peak_allocated(),
            peak_reserved_bytes: statistics.peak_reserved(),
            allocations: Figures::handed_out(statistics).saturating_sub(before),
        }
    }

    /// Blocks handed out since the allocator was made.
    #[must_use]
    pub fn handed_out(statistics: &Statistics) -> u64 {
        u64::try_from(statistics.metric(Metric::Allocation, PoolKind::All).allocated).unwrap_or(0)
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

/// The first part of a run in which a rank's memory is not the plan's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Divergence {
    /// The rank.
    pub rank: usize,
    /// The part.
    pub part: RunPart,
    /// Its step, from 1; 0 for the start.
    pub step: u64,
    /// The counters after it.
    pub measured: Figures,
    /// What the plan has.
    pub planned: Figures,
    /// The first allocation that differs; none where the history does not go back to the part's beginning, or where events
    /// are equal and only their counters are not.
    pub first: Option<Difference>,
    /// What is alive at its end beyond the plan, the oldest first.
    pub kept: LiveSet,
    /// Parts of the run that differ from the plan, this one included.
    pub parts: u64,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} leaves its plan in {}: ", self.rank, self.part.of_step(self.step))?;
        let both = self.measured.named().into_iter().zip(self.planned.named());
        let differ = both.filter(|((_, measured), (_, planned))| measured != planned);
        let told = differ.map(|((name, measured), (_, planned))| {
            format!("{} {name} instead of {}", grouped(measured), grouped(planned))
        });
        write!(f, "{}", told.collect::<Vec<_>>().join(", "))?;
        write_kept(f, "; alive at its end, and not in the plan: ", &self.kept)?;
        if let Some(first) = &self.first {
            write!(f, "; the first difference: {first}")?;
        }
        Ok(())
    }
}

/// Inputs, results of operators or their gradients that a part of a run leaves behind: nothing of a graph should outlive it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outlived {
    /// The rank.
    pub rank: usize,
    /// The first part that does so.
    pub part: RunPart,
    /// Its step, from 1.
    pub step: u64,
    /// What it leaves, the oldest first.
    pub kept: LiveSet,
    /// Parts at whose end some is alive, this one included.
    pub parts: u64,
}

impl fmt::Display for Outlived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.part.of_step(self.step);
        write!(f, "rank {}: something of the graph of {place} outlives it", self.rank)?;
        write_kept(f, ": ", &self.kept)
    }
}

/// Holdings that are told; the rest is counted.
const TOLD: usize = 3;

fn write_kept(f: &mut fmt::Formatter<'_>, begin: &str, kept: &LiveSet) -> fmt::Result {
    if kept.holdings.is_empty() {
        return Ok(());
    }
    let told = kept.holdings.iter().take(TOLD).map(Holding::to_string).collect::<Vec<_>>();
    write!(f, "{begin}{}", told.join("; "))?;
    match kept.holdings.len().saturating_sub(TOLD) {
        0 => Ok(()),
        more => write!(f, "; and {more} more"),
    }
}
