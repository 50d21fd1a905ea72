//! Detects micro-batches that repeat earlier ones, so that a plan can skip them.
//!
//! Each pass ends a stretch of allocator events. Suppose that the stretches of one period equal the stretches
//! of the previous period, including all addresses. Then every address allocated in the period was free
//! before it, and afterwards is in the same state as one period earlier: blocks and segments are unchanged.
//! As long as the actions repeat, so do the events. Repetition is detected by comparison, never assumed:
//! actions that do not repeat are executed.

use std::collections::BTreeMap;
use std::ops::Range;

use collective::AxisTraffic;
use device::Device;

use crate::data::SinkPhase;
use crate::error::{ParallelError, Result};
use crate::pipeline::action::Action;

/// Limits of a plan's work, in allocations of one rank. Nothing in a plan depends on values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanWork {
    /// Minimum number of allocations of an execution for repeating micro-batches to be skipped.
    pub skips_from: u64,
    /// Maximum number of allocations since the start of the rank.
    pub most: u64,
}

/// Maximum number of actions for which calls are compared, not only memory. In longer lists few lanes would
/// repeat others, since each is added to others in its own way.
const MOST_COMPARED: usize = 1 << 13;

/// Allocations and traffic of the actions that a plan skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Number of allocations that the actions would have made.
    pub allocations: u64,
    /// Traffic between ranks that the actions would have caused.
    pub traffic: AxisTraffic,
}

impl std::ops::AddAssign for Skipped {
    fn add_assign(&mut self, other: Self) {
        self.allocations += other.allocations;
        self.traffic += other.traffic;
    }
}

/// Consecutive actions to skip, because they repeat earlier ones.
pub(super) struct Repetition {
    /// Number of actions to skip.
    pub(super) actions: usize,
    /// Number of micro-batches of each affected stage.
    pub(super) micro_batches: usize,
    /// One action for each affected stage.
    pub(super) stages: Vec<Action>,
    pub(super) totals: Skipped,
    /// Range of one period's calls in the device's log, and the number of repetitions.
    pub(super) calls: (Range<usize>, usize),
}

/// The allocator events between two passes, and totals up to the later one.
struct Stretch {
    /// Number of actions executed.
    done: usize,
    /// Digest of the allocator events since the previous pass.
    digest: u64,
    allocations: u64,
    traffic: AxisTraffic,
    /// Number of calls in the device's log.
    calls: usize,
}

/// A search for a period in the allocator events of an execution.
pub(super) struct Repeats<'a> {
    actions: &'a [Action],
    /// Gradient phase of each action, which determines how its gradients are added.
    phases: Vec<SinkPhase>,
    /// Whether a repetition requires equal logged calls, not only equal memory.
    compares_calls: bool,
    work: PlanWork,
    /// Number of the rank's allocations before this execution began.
    before: u64,
    stretches: Vec<Stretch>,
    /// Index of the last stretch with each digest.
    latest: BTreeMap<u64, usize>,
}

impl<'a> Repeats<'a> {
    pub(super) fn new(
        device: &Device,
        work: PlanWork,
        actions: &'a [Action],
        phase: impl Fn(&Action) -> SinkPhase,
    ) -> Self {
        device.with_allocator(|allocator| allocator.start_digest());
        let phases = actions.iter().map(phase).collect();
        let before = allocations(device);
        let compares_calls = device.is_logging() && actions.len() <= MOST_COMPARED;
        let (stretches, latest) = Default::default();
        Repeats { actions, phases, compares_calls, work, before, stretches, latest }
    }

    /// Records a pass after which `done` actions are executed. Returns the following actions if they repeat
    /// earlier ones.
    ///
    /// # Errors
    /// The plan made more allocations than allowed.
    pub(super) fn note(
        &mut self,
        device: &Device,
        done: usize,
        traffic: AxisTraffic,
    ) -> Result<Option<Repetition>> {
        let allocations = allocations(device);
        if allocations > self.work.most {
            return Err(ParallelError::PlanWork { most: self.work.most });
        }
        let foreseen = (allocations - self.before).saturating_mul(self.actions.len() as u64) / done as u64;
        let digest = device.with_allocator(|allocator| allocator.take_digest());
        if foreseen < self.work.skips_from {
            return Ok(None);
        }
        let now = self.stretches.len();
        self.stretches.push(Stretch { done, digest, allocations, traffic, calls: device.logged_calls() });
        let Some(period) = self.latest.insert(digest, now).map(|before| now - before) else {
            return Ok(None);
        };
        let repetition = (0..usize::BITS)
            .map_while(|power| period.checked_mul(1 << power))
            .take_while(|period| 2 * period <= now)
            .find_map(|period| self.repetition(period));
        if repetition.is_some() {
            // Addresses and micro-batches continue from the position after the skipped actions.
            self.stretches.clear();
            self.latest.clear();
        }
        Ok(repetition)
    }

    /// Returns the actions to skip if the last `period` stretches repeat the ones before: all whole periods
    /// that follow with the same actions.
    fn repetition(&self, period: usize) -> Option<Repetition> {
        let last = self.stretches.len() - 1;
        let [first, middle, end] = [2 * period, period, 0].map(|back| &self.stretches[last - back]);
        let equal =
            |back: usize| self.stretches[last - back].digest == self.stretches[last - back - period].digest;
        let length = end.done - middle.done;
        if length != middle.done - first.done || !(0..period).all(equal) {
            return None;
        }
        let shift =
            self.actions[middle.done].micro_batch.checked_sub(self.actions[first.done].micro_batch)?;
        // The events are also equal if a gradient was overwritten in one period and added in the next.
        let alike = |before: SinkPhase, after: SinkPhase| match self.compares_calls {
            true => before == after,
            false => before.has_memory_of(after),
        };
        let varies = (first.done..middle.done).any(|at| !alike(self.phases[at], self.phases[at + length]));
        if varies && self.compares_calls {
            return None;
        }
        let matches = |at: &usize| {
            let (Some(later), Some(action)) = (self.actions.get(at + length), self.actions.get(*at)) else {
                return false;
            };
            let [before, after] = [self.phases[*at], self.phases[at + length]];
            *later == Action { micro_batch: action.micro_batch + shift, ..*action }
                && (alike(before, after) || (varies && before.differs_in_accumulation(after)))
        };
        let matching = (first.done..).take_while(matches).count();
        let times = (matching / length).checked_sub(1).filter(|times| *times > 0)?;
        let many = times as u64;
        let traffic = (end.traffic - middle.traffic).times(many);
        let allocations = many * (end.allocations - middle.allocations);
        let totals = Skipped { allocations, traffic };
        let mut stages = self.actions[first.done..middle.done].to_vec();
        stages.sort_unstable_by_key(|action| action.stage);
        stages.dedup_by_key(|action| action.stage);
        let calls = (middle.calls..end.calls, times);
        Some(Repetition { actions: times * length, micro_batches: times * shift, stages, totals, calls })
    }
}

fn allocations(device: &Device) -> u64 {
    device.with_allocator(|allocator| allocator.statistics().handed_out())
}
