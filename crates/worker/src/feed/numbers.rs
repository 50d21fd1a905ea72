//! Assigns global numbers to the micro-batches that a rank runs.

use std::sync::Arc;

use collective::{Axis, RankGrid};
use config::RunConfig;
use data::MicroBatchId;
use parallel::data::Assignment;
use planned::samples_of;

/// Numbers of the micro-batches in one pass over the schedule, such as a training step, and in later passes.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    /// Creates an identifier for training, validation or pairs from a number.
    id: fn(u64) -> MicroBatchId,
    assignment: Assignment,
    /// The replica that this rank belongs to.
    replica: usize,
    /// Index of this pass, and total number of passes. For training, a pass is a step.
    pass: u64,
    passes: u64,
    /// Passes in data order whose micro-batches are skipped, ascending.
    left_out: Arc<Vec<u64>>,
}

impl Numbers {
    /// Returns the numbers of training step `step` and later ones. The samples of the steps `left_out` are
    /// skipped.
    pub(crate) fn training(config: &RunConfig, grid: &RankGrid, step: u64, left_out: &Arc<Vec<u64>>) -> Self {
        Numbers {
            id: MicroBatchId::Training,
            assignment: config.training_assignment(),
            replica: grid.coordinate(Axis::Data),
            pass: step,
            passes: config.train.steps,
            left_out: Arc::clone(left_out),
        }
    }

    /// Returns the numbers of another replica, for this pass only.
    pub(crate) fn of_replica(self, replica: usize) -> Self {
        Numbers { replica, passes: self.pass + 1, ..self }
    }

    /// Returns the numbers of a validation.
    pub(crate) fn validation(config: &RunConfig, grid: &RankGrid) -> Self {
        Numbers {
            id: MicroBatchId::Validation,
            assignment: config.validation_assignment(),
            replica: grid.coordinate(Axis::Data),
            pass: 0,
            passes: 1,
            left_out: Arc::default(),
        }
    }

    /// Returns the numbers for scoring `micro_batches` micro-batches of preference pairs.
    pub(crate) fn pairs(config: &RunConfig, grid: &RankGrid, micro_batches: usize) -> Self {
        let assignment = config.pairs_assignment(micro_batches);
        Numbers { id: MicroBatchId::Pairs, assignment, ..Numbers::validation(config, grid) }
    }

    /// Returns whether these are training micro-batches.
    pub(crate) fn trains(&self) -> bool {
        matches!((self.id)(0), MicroBatchId::Training(_))
    }

    /// Returns the number of micro-batches of this replica per pass.
    pub(crate) fn count(&self) -> usize {
        self.assignment.count(self.replica)
    }

    /// Returns whether micro-batch `index` counts for this replica. A padded assignment adds a micro-batch of
    /// another replica, whose results are ignored.
    pub(crate) fn is_own(&self, index: usize) -> bool {
        let assignment = &self.assignment;
        index < assignment.lanes_of(self.replica) * assignment.micro_batches_per_lane()
    }

    /// Returns the number, within this pass over all replicas, of this replica's micro-batch `index`.
    pub(crate) fn number_in_pass(&self, index: usize) -> u64 {
        self.assignment.number(self.replica, index) as u64
    }

    /// Returns the index of this pass; in training, the step from 0.
    pub(crate) fn pass_index(&self) -> u64 {
        self.pass
    }

    /// Returns the identifier of this replica's micro-batch `index`.
    pub(crate) fn id(&self, index: usize) -> MicroBatchId {
        self.id_in(self.pass, index)
    }

    /// Returns the identifier of this replica's micro-batch `index` in pass `pass`.
    fn id_in(&self, pass: u64, index: usize) -> MicroBatchId {
        let before = samples_of(pass, &self.left_out).saturating_mul(self.assignment.total() as u64);
        (self.id)(before.saturating_add(self.number_in_pass(index)))
    }

    /// Returns the identifiers of this pass's micro-batches on all replicas.
    pub(crate) fn all_ids(&self) -> impl Iterator<Item = MicroBatchId> {
        let id = self.id;
        let all = self.assignment.total() as u64;
        let before = samples_of(self.pass, &self.left_out).saturating_mul(all);
        (0..all).map(move |number| id(before.saturating_add(number)))
    }

    /// Returns the number, over all passes and replicas, of this replica's micro-batch `index`.
    pub(crate) fn number(&self, index: usize) -> u64 {
        match self.id(index) {
            MicroBatchId::Training(number)
            | MicroBatchId::Validation(number)
            | MicroBatchId::Pairs(number) => number,
        }
    }

    /// Returns the identifiers of micro-batches still to be read: from position `from` of `order` in this
    /// pass, to the end of the last pass.
    pub(crate) fn following<'a>(
        &'a self,
        order: &'a [usize],
        from: usize,
    ) -> impl Iterator<Item = MicroBatchId> + 'a {
        let this_pass = order[from.min(order.len())..].iter().map(|index| self.id(*index));
        let passes = if order.is_empty() { 0 } else { self.passes };
        let later = (self.pass + 1..passes)
            .flat_map(move |pass| order.iter().map(move |index| self.id_in(pass, *index)));
        this_pass.chain(later)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use data::MicroBatchId::{self, Training, Validation};
    use parallel::data::Assignment;

    use super::{Numbers, samples_of};

    fn listed(numbers: &Numbers, order: &[usize], from: usize) -> Vec<MicroBatchId> {
        numbers.following(order, from).collect()
    }

    #[test]
    fn micro_batches_of_later_steps_follow_in_training() {
        let assignment = Assignment::contiguous(2, 2).with_lanes_of(2);
        let left_out = Arc::default();
        let training = Numbers { id: Training, assignment, replica: 1, pass: 1, passes: 3, left_out };
        assert_eq!((training.count(), training.number_in_pass(1), training.trains()), (2, 3, true));
        assert_eq!(listed(&training, &[1, 0], 1), [6, 11, 10].map(Training));
        assert_eq!(listed(&Numbers { pass: 2, ..training.clone() }, &[1, 0], 0), [11, 10].map(Training));
        assert_eq!(listed(&training, &[], 0), []);
    }

    #[test]
    fn samples_that_are_left_out_are_used_by_no_step() {
        for (left_out, expected) in [
            (&[][..], [0, 1, 2, 3, 4]),
            (&[0], [1, 2, 3, 4, 5]),
            (&[2], [0, 1, 3, 4, 5]),
            (&[2, 3, 5], [0, 1, 4, 6, 7]),
            (&[9], [0, 1, 2, 3, 4]),
        ] {
            assert_eq!([0, 1, 2, 3, 4].map(|step| samples_of(step, left_out)), expected, "{left_out:?}");
        }
    }

    #[test]
    fn nothing_follows_a_validation() {
        let assignment = Assignment::round_robin(5, 2);
        let left_out = Arc::default();
        let validation = Numbers { id: Validation, assignment, replica: 1, pass: 0, passes: 1, left_out };
        assert_eq!((validation.count(), validation.trains()), (2, false));
        assert_eq!(listed(&validation, &[0, 1], 0), [1, 3].map(Validation));
    }
}
