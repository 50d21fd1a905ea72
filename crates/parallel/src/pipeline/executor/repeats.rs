//! Micro-batches that repeat those before them, which a plan passes over.
//!
//! A pass ends a stretch of the allocator's events. Where the stretches of one period, with all addresses,
//! equal those of the period before it, every address that was handed out in the period was free before and is
//! free or handed out alike after it: blocks and segments are as they were a period ago, and each free of the
//! period is of a block of the same place. As long as the actions go on in the same way, so do the events.
//! Whether they do is found by comparing, never assumed: what does not repeat is run.

use std::collections::BTreeMap;

use collective::OperationTraffic;
use device::Device;

use crate::data::SinkPhase;
use crate::pipeline::action::Action;

/// Totals of the actions that were passed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassedOver {
    /// Allocations.
    pub allocations: u64,
    /// Traffic between ranks.
    pub traffic: OperationTraffic,
}

impl std::ops::AddAssign for PassedOver {
    fn add_assign(&mut self, other: Self) {
        self.allocations += other.allocations;
        self.traffic += other.traffic;
    }
}

/// Actions to pass over.
pub(super) struct Repetition {
    /// Number of actions.
    pub(super) actions: usize,
    /// Number of micro-batches, of every stage.
    pub(super) micro_batches: usize,
    pub(super) totals: PassedOver,
}

/// The state of the walk after a pass.
struct Stretch {
    /// Number of actions done.
    done: usize,
    /// Digest of the events since the pass before.
    digest: u64,
    allocations: u64,
    traffic: OperationTraffic,
}

/// Looks for a period in the events of a walk.
pub(super) struct Repeats<'a> {
    actions: &'a [Action],
    /// By action, what decides how its gradients are taken.
    phases: Vec<SinkPhase>,
    /// Nothing is passed over in a walk of fewer allocations.
    least: u64,
    /// Allocations before the walk.
    before: u64,
    stretches: Vec<Stretch>,
    /// By digest, the last stretch with it.
    latest: BTreeMap<u64, usize>,
}

impl<'a> Repeats<'a> {
    pub(super) fn new(
        device: &Device,
        least: u64,
        actions: &'a [Action],
        phase: impl Fn(&Action) -> SinkPhase,
    ) -> Self {
        device.with_allocator(|allocator| allocator.start_digest());
        let (phases, before) = (actions.iter().map(phase).collect(), allocations(device));
        Repeats { actions, phases, least, before, stretches: Vec::new(), latest: BTreeMap::new() }
    }

    /// Notes a pass after which `done` actions are done. Returns the actions after it that repeat those before,
    /// if there are any.
    pub(super) fn note(
        &mut self,
        device: &Device,
        done: usize,
        traffic: OperationTraffic,
    ) -> Option<Repetition> {
        let allocations = allocations(device);
        let foreseen = (allocations - self.before).saturating_mul(self.actions.len() as u64) / done as u64;
        let digest = device.with_allocator(|allocator| allocator.take_digest());
        if foreseen < self.least {
            return None;
        }
        let now = self.stretches.len();
        self.stretches.push(Stretch { done, digest, allocations, traffic });
        let period = now - self.latest.insert(digest, now)?;
        let found = (0..usize::BITS)
            .map_while(|power| period.checked_mul(1 << power))
            .take_while(|period| 2 * period <= now)
            .find_map(|period| self.repetition(period));
        if found.is_some() {
            // Addresses and micro-batches go on from where the walk jumps to.
            self.stretches.clear();
            self.latest.clear();
        }
        found
    }

    /// The whole periods of `period` stretches that follow, if the last two are equal.
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
        // Where a gradient was written in one period and added in the next, the events were the same.
        let varies = (first.done..middle.done).any(|at| self.phases[at] != self.phases[at + length]);
        let matches = |at: &usize| {
            let (Some(later), Some(action)) = (self.actions.get(at + length), self.actions.get(*at)) else {
                return false;
            };
            let [before, after] = [self.phases[*at], self.phases[at + length]];
            *later == Action { micro_batch: action.micro_batch + shift, ..*action }
                && (before == after || (varies && before.differs_in_accumulation(after)))
        };
        let matching = (first.done..).take_while(matches).count();
        let times = (matching / length).checked_sub(1).filter(|times| *times > 0)?;
        let calls = end.traffic - middle.traffic;
        let many = times as u64;
        let traffic = OperationTraffic {
            calls: many * calls.calls,
            bytes_sent: many * calls.bytes_sent,
            bytes_received: many * calls.bytes_received,
        };
        let allocations = many * (end.allocations - middle.allocations);
        let totals = PassedOver { allocations, traffic };
        Some(Repetition { actions: times * length, micro_batches: times * shift, totals })
    }
}

fn allocations(device: &Device) -> u64 {
    device.with_allocator(|allocator| allocator.statistics().handed_out())
}
