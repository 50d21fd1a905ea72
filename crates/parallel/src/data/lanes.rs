//! Lanes: the fixed order in which micro-batches' gradients are added.

use crate::error::{ParallelError, Result};

/// The lanes of one data-parallel rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lanes {
    /// Number of lanes on this rank.
    pub local: usize,
    /// Number of micro-batches in one lane.
    pub micro_batches_per_lane: usize,
}

impl Lanes {
    /// Distributes `lanes` lanes, with `micro_batches` micro-batches in total, over `data` ranks.
    ///
    /// # Errors
    /// Numbers that do not divide each other.
    pub fn new(lanes: usize, micro_batches: usize, data: usize) -> Result<Self> {
        let divides = |a: usize, b: usize| a > 0 && b.is_multiple_of(a);
        if !lanes.is_power_of_two() || !divides(lanes, micro_batches) || !divides(data, lanes) {
            return Err(ParallelError::Grid(format!(
                "{micro_batches} micro-batches, {lanes} lanes and {data} data-parallel ranks do not divide \
                 each other"
            )));
        }
        Ok(Lanes { local: lanes / data, micro_batches_per_lane: micro_batches / lanes })
    }

    /// Number of micro-batches that this rank runs in a step.
    pub fn micro_batches(&self) -> usize {
        self.local * self.micro_batches_per_lane
    }

    /// Number of gradient sets: 1 + log2 of the lanes, the fewest that hold the parts of a balanced tree
    /// whose leaves come one after another. Where a lane is one micro-batch, the last lane needs no set: each
    /// of its buckets goes up the tree as soon as it is full.
    pub fn sets(&self) -> usize {
        1 + self.local.ilog2() as usize - usize::from(self.last_is_transient())
    }

    /// Returns whether the last lane has transient buckets instead of a set.
    pub fn last_is_transient(&self) -> bool {
        self.local > 1 && self.micro_batches_per_lane == 1
    }

    /// The set in which lane `lane` adds up: the number of subtrees to its left that wait for their sibling.
    /// [`Lanes::sets`] for a last lane without one.
    pub fn set_of(&self, lane: usize) -> usize {
        lane.count_ones() as usize
    }

    /// Number of subtrees that lane `lane` completes, which is how often the topmost set is added to the one
    /// below.
    pub fn folds_after(&self, lane: usize) -> usize {
        lane.trailing_ones() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::Lanes;

    /// Applies the folds to names instead of gradients.
    fn sum(lanes: usize) -> (String, usize) {
        let plan = Lanes::new(lanes, lanes, 1).unwrap();
        // The last one stands for transient buckets.
        let mut sets = vec![String::new(); plan.sets() + 1];
        for lane in 0..lanes {
            let mut top = plan.set_of(lane);
            sets[top] = lane.to_string();
            for _ in 0..plan.folds_after(lane) {
                sets[top - 1] = format!("({}+{})", sets[top - 1], sets[top]);
                top -= 1;
            }
        }
        (sets[0].clone(), plan.sets())
    }

    #[test]
    fn folds_build_the_balanced_tree_in_logarithmic_sets() {
        assert_eq!(sum(1), ("0".into(), 1));
        assert_eq!(sum(2), ("(0+1)".into(), 1));
        assert_eq!(sum(4), ("((0+1)+(2+3))".into(), 2));
        assert_eq!(sum(8), ("(((0+1)+(2+3))+((4+5)+(6+7)))".into(), 3));
        for (lanes, sets) in [(1, 1), (2, 2), (4, 3), (8, 4)] {
            let plan = Lanes::new(lanes, 2 * lanes, 1).unwrap();
            assert_eq!((plan.sets(), plan.set_of(lanes - 1)), (sets, sets - 1));
        }
    }

    #[test]
    fn numbers_that_do_not_divide_are_refused() {
        for (lanes, micro_batches, data) in [(3, 3, 1), (4, 6, 1), (4, 4, 3), (4, 4, 8), (0, 0, 1), (4, 4, 0)]
        {
            assert!(Lanes::new(lanes, micro_batches, data).is_err(), "{lanes} {micro_batches} {data}");
        }
    }
}
