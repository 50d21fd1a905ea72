//! Where two traces of one step part: which allocation is another, and what lives on that should not.

use std::collections::HashMap;
use std::fmt;

use memory::{Bytes, Category};
use serde::{Deserialize, Serialize};

use super::{Held, Holding, LiveSet, Owner, StepTrace, TraceEvent};

/// How a measured step differs from the planned one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceKind {
    /// An allocation that the plan does not have.
    Extra,
    /// One that the plan has, and that was not made.
    Missing,
    /// One of other bytes.
    Resized,
    /// A block that the plan gives back here, and that is kept.
    Kept,
    /// A block that is given back before the plan does.
    Early,
    /// The same allocations in another order.
    Moved,
    /// The same blocks, for which memory is taken from the driver, or given back, otherwise.
    Driver,
}

/// The first event in which a measured step differs from the planned one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// How.
    pub kind: DifferenceKind,
    /// Whose allocation.
    #[serde(flatten)]
    pub owner: Owner,
    /// Bytes that it asks for; of [`DifferenceKind::Missing`] and [`DifferenceKind::Kept`] what the plan has.
    pub bytes: u64,
    /// Bytes that the plan has instead, of [`DifferenceKind::Resized`].
    pub planned_bytes: Option<u64>,
    /// Events of the measured step before it.
    pub events: usize,
    /// The phase it stands in.
    pub phase: String,
}

/// An event apart from the numbers of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step<'a> {
    Allocate(&'a Owner, u64),
    Free(&'a Owner, u64),
}

impl StepTrace {
    /// The first allocation or return in which this trace differs from `planned`; where there is none, the first piece of
    /// memory that is taken from the driver otherwise. `None` of equal ones.
    #[must_use]
    pub fn difference(&self, planned: &StepTrace) -> Option<Difference> {
        let (measured, expected) = (self.steps(), planned.steps());
        let parted = (0..measured.len().max(expected.len()))
            .find(|at| measured.get(*at).map(|(_, step)| step) != expected.get(*at).map(|(_, step)| step));
        match parted {
            Some(at) => self.told(&measured, &expected, at),
            None => self.driver_difference(planned),
        }
    }

    /// What is alive at the end and not at the end of `planned`: what was kept, by owner, the oldest first.
    #[must_use]
    pub fn kept_beyond(&self, planned: &StepTrace) -> LiveSet {
        let mut due: HashMap<(&Owner, u64), u64> = HashMap::new();
        let blocks = planned.blocks();
        for number in planned.numbers_after(planned.events.len()) {
            if let Some(key) = blocks.get(number).and_then(|block| planned.key(block)) {
                *due.entry(key).or_default() += 1;
            }
        }
        let blocks = self.blocks();
        let mut kept: Vec<Holding> = Vec::new();
        for block in self.numbers_after(self.events.len()).iter().filter_map(|number| blocks.get(*number)) {
            let Some(key) = self.key(block) else { continue };
            match due.get_mut(&key) {
                Some(count) if *count > 0 => *count -= 1,
                _ => add(&mut kept, key.0, block),
            }
        }
        LiveSet { holdings: kept }
    }

    /// What was asked for within the trace and is alive at its end, the oldest first.
    #[must_use]
    pub fn kept(&self) -> LiveSet {
        let blocks = self.blocks();
        let mut kept: Vec<Holding> = Vec::new();
        for number in self.numbers_after(self.events.len()) {
            let Some(block) = blocks.get(number).filter(|_| number >= self.held.len()) else { continue };
            if let Some(owner) = self.owners.get(block.owner) {
                add(&mut kept, owner, block);
            }
        }
        LiveSet { holdings: kept }
    }

    fn key(&self, block: &Held) -> Option<(&Owner, u64)> {
        Some((self.owners.get(block.owner)?, block.requested))
    }

    /// Allocations and returns, each with its place among the events.
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

    fn told(
        &self,
        measured: &[(usize, Step<'_>)],
        expected: &[(usize, Step<'_>)],
        at: usize,
    ) -> Option<Difference> {
        use DifferenceKind::{Early, Extra, Kept, Missing, Moved, Resized};
        let count = |steps: &[(usize, Step<'_>)], what: Step<'_>| {
            steps[at.min(steps.len())..].iter().filter(|(_, step)| *step == what).count()
        };
        let more = |what| count(measured, what) > count(expected, what);
        let fewer = |what| count(measured, what) < count(expected, what);
        let (here, there) = (measured.get(at).map(|m| m.1), expected.get(at).map(|e| e.1));
        let (kind, owner, bytes, planned_bytes) = match (here, there) {
            (Some(Step::Allocate(owner, bytes)), Some(due @ Step::Allocate(other, planned)))
                if owner == other && fewer(due) =>
            {
                (Resized, owner, bytes, Some(planned))
            }
            (Some(new @ Step::Allocate(owner, bytes)), _) if more(new) => (Extra, owner, bytes, None),
            (_, Some(due @ Step::Allocate(owner, bytes))) if fewer(due) => (Missing, owner, bytes, None),
            (_, Some(Step::Free(owner, bytes))) => (Kept, owner, bytes, None),
            (Some(Step::Free(owner, bytes)), _) => (Early, owner, bytes, None),
            (Some(Step::Allocate(owner, bytes)), _) | (None, Some(Step::Allocate(owner, bytes))) => {
                (Moved, owner, bytes, None)
            }
            (None, None) => return None,
        };
        let events = measured.get(at).map_or(self.events.len(), |(place, _)| *place);
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
        let (measured, expected) = (calls(self), calls(planned));
        let parted =
            (0..measured.len().max(expected.len())).find(|at| measured.get(*at) != expected.get(*at))?;
        let bytes = |call: &(usize, Owner, u64, u64)| call.2.max(call.3);
        let planned_bytes = expected.get(parted).map(bytes);
        let (events, owner, bytes) = match (measured.get(parted), expected.get(parted)) {
            (Some(call), _) => (call.0, call.1.clone(), bytes(call)),
            (None, call) => (self.events.len(), call?.1.clone(), 0),
        };
        let (kind, phase) = (DifferenceKind::Driver, self.phase_at(events));
        Some(Difference { kind, owner, bytes, planned_bytes, events, phase })
    }

    /// The phase of the event at this place.
    fn phase_at(&self, place: usize) -> String {
        let spans = self.spans();
        let span = spans.iter().find(|span| (span.from..span.to).contains(&place)).or(spans.last());
        span.map_or_else(|| self.part.name().to_owned(), |span| span.phase.clone())
    }
}

fn add(kept: &mut Vec<Holding>, owner: &Owner, block: &Held) {
    let since = block.since;
    let place = kept.iter().position(|holding| holding.owner == *owner).unwrap_or(kept.len());
    if place == kept.len() {
        kept.push(Holding { owner: owner.clone(), blocks: 0, requested: 0, bytes: 0, since });
    }
    let holding = &mut kept[place];
    holding.blocks += 1;
    holding.requested += block.requested;
    holding.bytes += block.bytes;
    holding.since = holding.since.min(since);
}

/// Who asks, in words: `h.1.mlp.up (linear, activation)`.
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
        let (owner, bytes, phase) = (&self.owner, Bytes(self.bytes), &self.phase);
        write!(f, "in its {phase} phase, {owner} ")?;
        match (self.kind, self.planned_bytes.map(Bytes)) {
            (DifferenceKind::Extra, _) => write!(f, "allocates {bytes} that the plan does not have"),
            (DifferenceKind::Missing, _) => write!(f, "does not allocate the {bytes} that the plan has"),
            (DifferenceKind::Resized, planned) => {
                write!(f, "allocates {bytes} instead of {}", planned.unwrap_or(Bytes(0)))
            }
            (DifferenceKind::Kept, _) => write!(f, "keeps {bytes} that the plan gives back"),
            (DifferenceKind::Early, _) => write!(f, "gives back {bytes} before the plan does"),
            (DifferenceKind::Moved, _) => write!(f, "allocates {bytes} in another order than the plan"),
            (DifferenceKind::Driver, planned) => {
                let planned = planned.unwrap_or(Bytes(0));
                write!(f, "makes the driver give or take {bytes} where the plan has {planned}")
            }
        }
    }
}

impl fmt::Display for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (owner, bytes, blocks) = (&self.owner, Bytes(self.bytes), self.blocks);
        write!(f, "{owner}: {bytes} in {blocks} block{}", if blocks == 1 { "" } else { "s" })
    }
}

/// A category in words.
pub(crate) fn words(category: Category) -> String {
    category.name().replace('_', " ")
}
