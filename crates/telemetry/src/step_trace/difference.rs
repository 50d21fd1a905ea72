//! Differences between two traces of the same step: the first event that differs, and blocks that outlive the
//! plan.

use std::collections::HashMap;
use std::fmt;

use memory::Category;
use serde::{Deserialize, Serialize};

use super::{Held, Holding, LiveSet, Owner, StepTrace, TraceEvent};
use crate::units::bytes;

/// Kind of the first difference between a measured and a planned step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceKind {
    /// An allocation that is not in the plan.
    Extra,
    /// A planned allocation that was not made.
    Missing,
    /// An allocation of a different size than planned.
    Resized,
    /// A block that the plan frees at this point and the run keeps.
    #[serde(rename = "kept")]
    Unfreed,
    /// A block that is freed earlier than planned.
    Early,
    /// Allocations in a different order.
    Moved,
    /// Different driver calls for equal blocks.
    Driver,
}

/// The first event in which a measured step differs from the planned one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Kind of the difference.
    pub kind: DifferenceKind,
    /// Owner of the allocation.
    #[serde(flatten)]
    pub owner: Owner,
    /// Requested bytes; for [`DifferenceKind::Missing`] and [`DifferenceKind::Unfreed`], as planned.
    pub bytes: u64,
    /// Planned bytes, for [`DifferenceKind::Resized`] and [`DifferenceKind::Driver`].
    pub planned_bytes: Option<u64>,
    /// Number of events of the measured step before the difference.
    pub events: usize,
    /// Phase of the step in which the difference occurs.
    pub phase: String,
}

/// An allocation or a free, identified without a block number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step<'a> {
    Allocate(&'a Owner, u64),
    Free(&'a Owner, u64),
}

impl StepTrace {
    /// Returns the first allocation or free that differs from `planned`, else the first driver call that
    /// differs; `None` for equal traces.
    #[must_use]
    pub fn difference(&self, planned: &StepTrace) -> Option<Difference> {
        let measured = self.steps();
        let expected = planned.steps();
        let first = (0..measured.len().max(expected.len()))
            .find(|at| measured.get(*at).map(|(_, step)| step) != expected.get(*at).map(|(_, step)| step));
        match first {
            Some(at) => self.describe(&measured, &expected, at),
            None => self.driver_difference(planned),
        }
    }

    /// Returns the blocks alive at the end of this trace but not of `planned`, by owner, oldest first.
    #[must_use]
    pub fn outlived_beyond(&self, planned: &StepTrace) -> LiveSet {
        let mut due: HashMap<(&Owner, u64), u64> = HashMap::new();
        let blocks = planned.blocks();
        for number in planned.numbers_after(planned.events.len()) {
            if let Some(key) = blocks.get(number).and_then(|block| planned.key(block)) {
                *due.entry(key).or_default() += 1;
            }
        }
        let blocks = self.blocks();
        let mut holdings: Vec<Holding> = Vec::new();
        for block in self.numbers_after(self.events.len()).iter().filter_map(|number| blocks.get(*number)) {
            let Some(key) = self.key(block) else { continue };
            match due.get_mut(&key) {
                Some(count) if *count > 0 => *count -= 1,
                _ => add(&mut holdings, key.0, block),
            }
        }
        LiveSet { holdings }
    }

    /// Returns the blocks allocated within the trace and alive at its end, by owner, oldest first.
    #[must_use]
    pub fn outlived(&self) -> LiveSet {
        let blocks = self.blocks();
        let mut holdings: Vec<Holding> = Vec::new();
        for number in self.numbers_after(self.events.len()) {
            let Some(block) = blocks.get(number).filter(|_| number >= self.held.len()) else { continue };
            if let Some(owner) = self.owners.get(block.owner) {
                add(&mut holdings, owner, block);
            }
        }
        LiveSet { holdings }
    }

    fn key(&self, block: &Held) -> Option<(&Owner, u64)> {
        Some((self.owners.get(block.owner)?, block.requested))
    }

    /// Returns the allocations and frees, each with the index of its event.
    fn steps(&self) -> Vec<(usize, Step<'_>)> {
        let blocks = self.blocks();
        let step = |event: &TraceEvent| match *event {
            TraceEvent::Allocate { owner, requested, .. } => {
                Some(Step::Allocate(self.owners.get(owner)?, requested))
            }
            TraceEvent::Free { block } => {
                let (owner, requested) = self.key(blocks.get(block)?)?;
                Some(Step::Free(owner, requested))
            }
            TraceEvent::Driver { .. } => None,
        };
        self.events.iter().enumerate().filter_map(|(at, event)| Some((at, step(event)?))).collect()
    }

    /// Describes the difference at index `at` of both lists.
    fn describe(
        &self,
        measured: &[(usize, Step<'_>)],
        expected: &[(usize, Step<'_>)],
        at: usize,
    ) -> Option<Difference> {
        use DifferenceKind::{Early, Extra, Missing, Moved, Resized, Unfreed};
        let count = |steps: &[(usize, Step<'_>)], what: Step<'_>| {
            steps[at.min(steps.len())..].iter().filter(|(_, step)| *step == what).count()
        };
        let more = |what| count(measured, what) > count(expected, what);
        let fewer = |what| count(measured, what) < count(expected, what);
        let here = measured.get(at).map(|m| m.1);
        let there = expected.get(at).map(|e| e.1);
        let (kind, owner, bytes, planned_bytes) = match (here, there) {
            (Some(Step::Allocate(owner, bytes)), Some(due @ Step::Allocate(other, planned)))
                if owner == other && fewer(due) =>
            {
                (Resized, owner, bytes, Some(planned))
            }
            (Some(new @ Step::Allocate(owner, bytes)), _) if more(new) => (Extra, owner, bytes, None),
            (_, Some(due @ Step::Allocate(owner, bytes))) if fewer(due) => (Missing, owner, bytes, None),
            (_, Some(Step::Free(owner, bytes))) => (Unfreed, owner, bytes, None),
            (Some(Step::Free(owner, bytes)), _) => (Early, owner, bytes, None),
            (Some(Step::Allocate(owner, bytes)), _) | (None, Some(Step::Allocate(owner, bytes))) => {
                (Moved, owner, bytes, None)
            }
            (None, None) => return None,
        };
        let events = measured.get(at).map_or(self.events.len(), |(index, _)| *index);
        Some(Difference {
            kind,
            owner: owner.clone(),
            bytes,
            planned_bytes,
            events,
            phase: self.phase_at(events),
        })
    }

    fn driver_difference(&self, planned: &StepTrace) -> Option<Difference> {
        let calls = |trace: &StepTrace| -> Vec<(usize, Owner, u64, u64)> {
            let call = |(at, event): (usize, &TraceEvent)| match *event {
                TraceEvent::Driver { owner, taken, returned } => {
                    Some((at, trace.owners.get(owner)?.clone(), taken, returned))
                }
                _ => None,
            };
            trace.events.iter().enumerate().filter_map(call).collect()
        };
        let measured = calls(self);
        let expected = calls(planned);
        let first =
            (0..measured.len().max(expected.len())).find(|at| measured.get(*at) != expected.get(*at))?;
        let bytes = |call: &(usize, Owner, u64, u64)| call.2.max(call.3);
        let planned_bytes = expected.get(first).map(bytes);
        let (events, owner, bytes) = match (measured.get(first), expected.get(first)) {
            (Some(call), _) => (call.0, call.1.clone(), bytes(call)),
            (None, call) => (self.events.len(), call?.1.clone(), 0),
        };
        let kind = DifferenceKind::Driver;
        let phase = self.phase_at(events);
        Some(Difference { kind, owner, bytes, planned_bytes, events, phase })
    }

    /// Returns the phase of the event at `index`.
    fn phase_at(&self, index: usize) -> String {
        let spans = self.spans();
        let span = spans.iter().find(|span| (span.from..span.to).contains(&index)).or(spans.last());
        span.map_or_else(|| self.part.name().to_owned(), |span| span.phase.clone())
    }
}

fn add(holdings: &mut Vec<Holding>, owner: &Owner, block: &Held) {
    let since = block.since;
    let index = holdings.iter().position(|holding| holding.owner == *owner).unwrap_or(holdings.len());
    if index == holdings.len() {
        holdings.push(Holding { owner: owner.clone(), blocks: 0, requested: 0, bytes: 0, since });
    }
    let holding = &mut holdings[index];
    holding.blocks += 1;
    holding.requested += block.requested;
    holding.bytes += block.bytes;
    holding.since = holding.since.min(since);
}

/// Formats an owner as in `h.1.mlp.up (linear, activation)`.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let category = words(self.category);
        match (self.module.as_str(), self.operator.as_str()) {
            ("", "") => write!(f, "{category}"),
            ("", operator) => write!(f, "{operator} ({category})"),
            (module, "") => write!(f, "{module} ({category})"),
            (module, operator) => write!(f, "{module} ({operator}, {category})"),
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = &self.owner;
        let size = bytes(self.bytes);
        let phase = &self.phase;
        write!(f, "in its {phase} phase, {owner} ")?;
        let planned = bytes(self.planned_bytes.unwrap_or(0));
        match self.kind {
            DifferenceKind::Extra => write!(f, "allocates {size} that the plan does not have"),
            DifferenceKind::Missing => write!(f, "does not allocate the {size} that the plan has"),
            DifferenceKind::Resized => write!(f, "allocates {size} instead of {planned}"),
            DifferenceKind::Unfreed => write!(f, "keeps {size} that the plan frees"),
            DifferenceKind::Early => write!(f, "frees {size} before the plan does"),
            DifferenceKind::Moved => write!(f, "allocates {size} in another order than the plan"),
            DifferenceKind::Driver => {
                write!(f, "takes from or returns to the driver {size} where the plan has {planned}")
            }
        }
    }
}

impl fmt::Display for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = &self.owner;
        let size = bytes(self.bytes);
        let blocks = self.blocks;
        write!(f, "{owner}: {size} in {blocks} block{}", if blocks == 1 { "" } else { "s" })
    }
}

/// Returns the name of a category, in words.
pub(crate) fn words(category: Category) -> String {
    category.name().replace('_', " ")
}
