//! Lanes: the fixed order in which micro-batches' gradients are added.

use std::ops::Range;

use collective::RankTree;
use tensor::ops::tree::{joins, subtrees};

use super::assignment::Assignment;
use crate::error::{ParallelError, Result};

/// The lanes of one data-parallel rank.
///
/// Lanes are the leaves of the tree of [`subtrees`], which fixes the order of adding a step's gradients. A
/// rank owns contiguous lanes and completes their subtrees from left to right. Sums that wait for their right
/// sibling are kept in gradient sets; the topmost set is the current lane's. After the last lane, the sets
/// hold the rank's parts: the fewest subtrees that cover its lanes. There is one part for powers of two, and
/// at most 2 · log2(lanes). The owner of each shard adds the parts of all ranks ([`RankTree`]).
///
/// For a rank with n lanes and p of the P parts of R ranks, the costs are:
///
/// * 1 + log2(n) gradient sets, rounded down, if its lanes form a subtree or begin at lane 0; at most twice
///   as many otherwise. If a lane is one micro-batch, lanes that complete a subtree need no set.
/// * A workspace of P / R times the largest bucket.
/// * p · (R - 1) / R gradient sets sent, and (P - p) / R received.
///
/// With p = 1 these are the costs of any tree over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lanes {
    assignment: Assignment,
    rank: usize,
    /// Number of lanes of the tree.
    all: usize,
    /// Number of the rank's first lane.
    first: usize,
    sets: usize,
}

impl Lanes {
    /// Returns the lanes of a data-parallel rank, for an assignment of contiguous runs.
    ///
    /// # Errors
    /// There are more ranks than lanes, or the rank does not exist.
    pub fn new(assignment: Assignment, rank: usize) -> Result<Self> {
        Lanes { assignment, rank, all: assignment.lanes(), first: assignment.first_lane(rank), sets: 0 }
            .counted()
    }

    /// Returns the same lanes as a separate tree, whose sum a library adds to the sums of other ranks.
    pub fn apart(self) -> Result<Self> {
        Lanes { all: self.local(), first: 0, ..self }.counted()
    }

    /// Computes the number of sets.
    fn counted(self) -> Result<Self> {
        let ranks = self.assignment.replicas();
        let lanes = self.assignment.lanes();
        if ranks > lanes || self.rank >= ranks {
            return Err(ParallelError::Grid(format!(
                "{lanes} lanes on {ranks} data-parallel ranks leave rank {} none",
                self.rank
            )));
        }
        let needed = |lane: usize| self.set_of(lane) + usize::from(!self.passes_on(lane));
        Ok(Lanes { sets: (0..self.local()).map(needed).max().unwrap_or(1), ..self })
    }

    /// Number of lanes of this rank.
    pub fn local(&self) -> usize {
        self.assignment.lanes_of(self.rank)
    }

    /// Number of micro-batches in one lane.
    pub fn micro_batches_per_lane(&self) -> usize {
        self.assignment.micro_batches_per_lane()
    }

    /// Number of micro-batches that this rank runs per step.
    pub fn micro_batches(&self) -> usize {
        self.assignment.count(self.rank)
    }

    /// Number of gradient sets. A lane of one micro-batch that completes a subtree needs none: each full
    /// bucket is added to the tree at once, from a transient buffer.
    pub fn sets(&self) -> usize {
        self.sets
    }

    /// Number of gradient sets, from the first on, that hold the rank's subtree sums after its last lane.
    pub fn parts(&self) -> usize {
        self.set_of(self.local())
    }

    /// Returns each rank's number of subtree sums, and the order in which all of them are added.
    pub fn rank_tree(&self) -> Result<RankTree> {
        let ranks = self.assignment.replicas();
        if self.all != self.assignment.lanes() {
            return Ok(RankTree::balanced(ranks));
        }
        let run = |rank: usize| {
            let first = self.assignment.first_lane(rank);
            first..first + self.assignment.lanes_of(rank)
        };
        let tree = RankTree::of_runs(self.all, (0..ranks).map(run));
        tree.ok_or_else(|| ParallelError::Grid("the runs of lanes do not follow each other".to_owned()))
    }

    /// Returns whether this rank's lane `lane` uses transient buckets instead of a set.
    pub fn is_transient(&self, lane: usize) -> bool {
        self.set_of(lane) >= self.sets
    }

    /// Returns the index of the gradient set of local lane `lane`: the number of complete subtrees to its
    /// left that wait for their sibling. At least [`Lanes::sets`] if the lane has no set.
    pub fn set_of(&self, lane: usize) -> usize {
        subtrees(self.all, self.run(0..lane)).count()
    }

    /// Number of subtrees that this rank's lane `lane` completes; the topmost set is added to the one below
    /// that many times.
    pub fn folds_after(&self, lane: usize) -> usize {
        usize::from(joins(self.all, self.first, self.run(lane..lane + 1)))
    }

    /// Returns whether a lane's gradients may be added to the set below as they are produced.
    fn passes_on(&self, lane: usize) -> bool {
        self.micro_batches_per_lane() == 1 && self.folds_after(lane) > 0
    }

    /// Converts this rank's lane numbers to numbers among all lanes.
    fn run(&self, lanes: Range<usize>) -> Range<usize> {
        self.first + lanes.start..self.first + lanes.end
    }
}

#[cfg(test)]
mod tests {
    use super::{Assignment, Lanes};

    /// Applies the additions to names instead of gradients, and returns the rank's parts.
    fn parts(lanes: &Lanes) -> Vec<String> {
        // The last set stands for transient buckets.
        let mut sets = vec![String::new(); lanes.sets() + 1];
        for lane in 0..lanes.local() {
            let mut top = lanes.set_of(lane);
            assert_eq!(lanes.is_transient(lane), top == lanes.sets());
            assert!(!lanes.is_transient(lane) || lanes.micro_batches_per_lane() == 1);
            sets[top] = (lanes.first + lane).to_string();
            for _ in 0..lanes.folds_after(lane) {
                sets[top - 1] = format!("({}+{})", sets[top - 1], sets[top]);
                top -= 1;
            }
        }
        assert!(lanes.parts() <= lanes.sets());
        sets.truncate(lanes.parts());
        sets
    }

    fn sum(lanes: usize) -> (String, usize) {
        let lanes = Lanes::new(Assignment::contiguous(lanes, 1), 0).unwrap();
        (parts(&lanes).concat(), lanes.sets())
    }

    #[test]
    fn folds_build_the_tree_in_logarithmic_sets() {
        assert_eq!(sum(1), ("0".into(), 1));
        assert_eq!(sum(2), ("(0+1)".into(), 1));
        assert_eq!(sum(3), ("((0+1)+2)".into(), 1));
        assert_eq!(sum(4), ("((0+1)+(2+3))".into(), 2));
        assert_eq!(sum(6), ("(((0+1)+(2+3))+(4+5))".into(), 2));
        assert_eq!(sum(7), ("(((0+1)+(2+3))+((4+5)+6))".into(), 2));
        assert_eq!(sum(8), ("(((0+1)+(2+3))+((4+5)+(6+7)))".into(), 3));
        for (lanes, sets) in [(1, 1), (2, 2), (3, 2), (4, 3), (6, 3), (7, 3), (8, 4), (12, 4)] {
            let plan = Lanes::new(Assignment::contiguous(lanes, 1).with_lanes_of(2), 0).unwrap();
            assert_eq!(plan.sets(), sets, "{lanes}");
            assert!((0..lanes).all(|lane| !plan.is_transient(lane)));
        }
    }

    /// Checks the sets and parts of each rank, with one micro-batch in a lane and with several.
    #[test]
    fn uneven_runs_have_few_parts() {
        for (lanes, ranks, of_one, of_two, counts) in [
            (8, 2, vec![2, 2], vec![3, 3], vec![1, 1]),
            (8, 3, vec![2, 2, 1], vec![2, 3, 2], vec![2, 2, 1]),
            (8, 7, vec![1; 7], vec![2, 1, 1, 1, 1, 1, 1], vec![1; 7]),
            (12, 4, vec![2, 2, 2, 2], vec![2, 3, 2, 3], vec![2; 4]),
            (12, 6, vec![1; 6], vec![2; 6], vec![1; 6]),
            (35, 5, vec![3, 3, 3, 4, 2], vec![3, 4, 4, 5, 3], vec![3, 3, 3, 3, 2]),
        ] {
            let all = |each: usize, count: fn(&Lanes) -> usize| -> Vec<usize> {
                let runs = Assignment::contiguous(lanes, ranks).with_lanes_of(each);
                (0..ranks).map(|rank| count(&Lanes::new(runs, rank).unwrap())).collect()
            };
            assert_eq!(all(1, Lanes::sets), of_one, "{lanes} on {ranks}");
            assert_eq!(all(2, Lanes::sets), of_two, "{lanes} on {ranks}");
            assert_eq!(all(1, Lanes::parts), counts, "{lanes} on {ranks}");
        }
    }

    #[test]
    fn the_parts_of_all_ranks_give_the_sum_of_one() {
        for lanes in 1..40 {
            for ranks in 1..=lanes {
                let runs = Assignment::contiguous(lanes, ranks);
                let own = |rank: usize| Lanes::new(runs, rank).unwrap();
                let mut all: Vec<String> = (0..ranks).flat_map(|rank| parts(&own(rank))).collect();
                let tree = own(0).rank_tree().unwrap();
                assert_eq!((tree.ranks(), tree.parts()), (ranks, all.len()));
                for (left, right) in tree.tree().additions() {
                    all[left] = format!("({}+{})", all[left], all[right]);
                }
                assert_eq!(all[0], sum(lanes).0, "{lanes} on {ranks}");
                let apart = own(ranks - 1).apart().unwrap();
                assert_eq!((apart.parts(), apart.rank_tree().unwrap().parts()), (1, ranks));
            }
        }
    }

    #[test]
    fn a_rank_without_lanes_is_refused() {
        for (lanes, ranks, rank) in [(4, 5, 0), (4, 2, 2), (0, 1, 0)] {
            assert!(Lanes::new(Assignment::contiguous(lanes, ranks), rank).is_err(), "{lanes} {ranks}");
        }
    }
}
