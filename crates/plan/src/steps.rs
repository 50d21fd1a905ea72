//! Decides which steps a plan runs: those whose effect on memory is not known from an earlier step.

use device::{Device, DeviceOptions};
use memory::BlockPosition;
use planned::{Calendar, StepEffect, StepEffects, StepKind};
use telemetry::units::grouped;
use worker::Setup;

use crate::error::{PlanError, Result};

/// Maximum number of steps that are run on Meta only to age blocks.
const MOST_AGED: u64 = 1 << 13;
/// Maximum number of steps whose known effects are followed one by one; further steps are assumed to repeat
/// them.
const MOST_FOLLOWED: u64 = 1 << 20;

/// The allocator's blocks, without counters. If they are equal before and after a step, further equal steps
/// change nothing.
#[derive(PartialEq)]
pub(crate) struct Layout {
    blocks: Vec<BlockPosition>,
    /// Numbers of driver allocations and frees so far; `None` if steps empty the cache, which makes new ones
    /// in every round.
    driver_calls: Option<(i64, i64)>,
}

impl Layout {
    pub(crate) fn from_device(device: &Device, calendar: &Calendar) -> Self {
        device.with_allocator(|allocator| {
            let statistics = allocator.statistics();
            let calls = (statistics.num_device_alloc, statistics.num_device_free);
            Layout { blocks: allocator.layout(), driver_calls: Some(calls).filter(|_| !calendar.empties()) }
        })
    }
}

/// Indices of the planned parts of a step.
#[derive(Clone, Copy)]
pub(crate) struct PlannedStep {
    pub(crate) verification: Option<usize>,
    pub(crate) step: usize,
    pub(crate) validation: Option<usize>,
}

pub(crate) struct Steps {
    calendar: Calendar,
    /// Whether old blocks are released. Their age counts requests, so steps cannot be skipped until all kinds
    /// of steps have settled.
    ages: bool,
    /// Number of steps that were run only to age blocks.
    aged: u64,
    /// Layouts with which steps begin. If the cache is never emptied, only the current one.
    layouts: Vec<Layout>,
    /// Index of the current layout.
    now: usize,
    effects: StepEffects,
}

impl Steps {
    pub(crate) fn new(setup: &Setup, calendar: Calendar, layout: Layout) -> Self {
        let DeviceOptions { settings, limit_bytes, .. } = &setup.device;
        let limited = limit_bytes.is_some() || settings.per_process_memory_fraction < 1.0;
        let ages = limited && settings.garbage_collection_threshold > 0.0;
        let effects = StepEffects::default();
        Steps { calendar, ages, aged: 0, layouts: vec![layout], now: 0, effects }
    }

    /// Returns the next step to run, from `step` on; `None` if all further steps would repeat known ones and
    /// end with the current layout.
    ///
    /// # Errors
    /// Too many steps would be run only to age blocks.
    pub(crate) fn next(&mut self, setup: &Setup, step: u64) -> Result<Option<u64>> {
        if step >= self.calendar.steps {
            return Ok(None);
        }
        if self.calendar.empties() {
            return Ok(self.next_unknown(step));
        }
        if !self.is_settled(step) {
            return Ok(Some(step));
        }
        let other = self.next_unsettled(step);
        if other.is_some() && self.ages {
            self.check_aged(setup)?;
            return Ok(Some(step));
        }
        Ok(other)
    }

    /// Records a step that was run, with the indices of its parts.
    pub(crate) fn ran(&mut self, step: u64, layout: Layout, planned: PlannedStep) {
        let position = self.layouts.iter().position(|other| *other == layout);
        let PlannedStep { verification, step: part, validation } = planned;
        let effect = |next| StepEffect { next, verification, step: part, validation };
        if position.is_none() && !self.calendar.empties() {
            self.layouts = vec![layout];
            return self.effects.clear();
        }
        let next = position.unwrap_or_else(|| {
            self.layouts.push(layout);
            self.layouts.len() - 1
        });
        self.effects.add(self.now, self.calendar.kind(step), effect(next));
        self.now = next;
    }

    /// Returns the effects of all steps, if the cache is emptied.
    pub(crate) fn into_effects(self) -> Option<StepEffects> {
        self.calendar.empties().then_some(self.effects)
    }

    /// Returns the first step after `step` that is not known to leave the current layout unchanged.
    fn next_unsettled(&self, step: u64) -> Option<u64> {
        let kinds = std::iter::successors(Some(step), |step| self.calendar.next_of_another_kind(*step));
        let last = self.calendar.steps.checked_sub(1).filter(|last| *last > step);
        let mut later = kinds.skip(1).take(MOST_FOLLOWED as usize).chain(last);
        later.find(|step| !self.is_settled(*step))
    }

    /// Returns whether a step is known to leave the current layout unchanged.
    fn is_settled(&self, step: u64) -> bool {
        self.effects.effect(self.now, self.calendar.kind(step)).is_some_and(|effect| effect.next == self.now)
    }

    /// Follows the known effects from `step` on, until a step of unknown effect or the end. Returns the last
    /// step that begins with the current layout; `None` if the run ends with the current layout.
    fn next_unknown(&self, mut step: u64) -> Option<u64> {
        let mut layout = self.now;
        let mut last = None;
        let mut followed = 0;
        while step < self.calendar.steps {
            if layout == self.now {
                last = Some(step);
            }
            let kind = self.calendar.kind(step);
            let Some(StepEffect { next, .. }) = self.effects.effect(layout, kind) else { return last };
            if next == layout {
                step = self.calendar.next_of_another_kind(step).unwrap_or(self.calendar.steps);
            } else {
                (layout, step) = (next, step + 1);
            }
            followed += 1;
            if let Some(later) =
                self.last_round(kind).filter(|later| *later > step && followed >= MOST_FOLLOWED)
            {
                (layout, step) = (next, later);
            }
        }
        last.filter(|_| layout != self.now)
    }

    /// If `kind` empties the cache, returns the first step after the second-last emptying.
    fn last_round(&self, kind: StepKind) -> Option<u64> {
        kind.empties.then(|| self.calendar.last_round()).flatten()
    }

    /// Counts a step that is run only to age blocks.
    ///
    /// # Errors
    /// There were too many of them.
    fn check_aged(&mut self, setup: &Setup) -> Result<()> {
        self.aged += 1;
        if self.aged <= MOST_AGED {
            return Ok(());
        }
        let index = setup.config.origins.find("memory.allocator");
        let most = grouped(MOST_AGED);
        Err(PlanError::Refused(format!(
            "{index}: garbage_collection_threshold releases blocks by their age, so a plan runs every step \
             up to the first validation, at most {most}: set train.validate_every to fewer"
        )))
    }
}
