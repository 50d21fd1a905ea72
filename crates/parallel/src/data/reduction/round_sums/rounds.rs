//! Rounds: a rank with several lanes runs them one after another, and a tree adds their sums.

use std::ops::Range;

use collective::RankTree;
use tensor::ops::tree::{joins, subtrees};

use crate::data::assignment::Assignment;
use crate::data::options::Reduction;
use crate::error::{ParallelError, Result};

/// The rounds of the lanes of a group of ranks.
#[derive(Clone, Debug)]
pub(super) struct LaneRounds {
    assignment: Assignment,
    rounds: usize,
    /// Number of the rank's own lanes; in later rounds it repeats a lane of another rank.
    own: usize,
    /// Number of lanes added per round; the last round may have fewer.
    each: usize,
    /// Number of lanes of the tree, of which the group adds `run`. A library adds the lanes of a round
    /// itself, so they count as one.
    all: usize,
    run: Range<usize>,
    reduction: Reduction,
}

/// A subtree of lanes that one round completes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Subtree {
    pub(super) run: Range<usize>,
    /// Number of sums to its left that wait for their right sibling.
    pub(super) set: usize,
    /// Number of waiting sums that it joins.
    pub(super) joins: usize,
}

impl LaneRounds {
    /// Returns the rounds of the group that contains `rank`.
    pub(super) fn new(assignment: Assignment, rank: usize, reduction: Reduction) -> Self {
        let group = rank / assignment.group();
        let rounds = assignment.lanes_of(group * assignment.group());
        let (each, all, run) = match reduction {
            Reduction::Tree => (assignment.group(), assignment.lanes(), assignment.lanes_of_group(group)),
            Reduction::Library => (1, rounds, 0..rounds),
        };
        let own = assignment.lanes_of(rank);
        LaneRounds { assignment, rounds, own, each, all, run, reduction }
    }

    pub(super) fn micro_batches_per_lane(&self) -> usize {
        self.assignment.micro_batches_per_lane()
    }

    pub(super) fn rounds(&self) -> usize {
        self.rounds
    }

    /// Returns whether the rank runs a lane of its own in a round.
    pub(super) fn has_lane(&self, round: usize) -> bool {
        round < self.own
    }

    pub(super) fn lanes_of_round(&self, round: usize) -> Range<usize> {
        let lane = |round: usize| (self.run.start + round * self.each).min(self.run.end);
        lane(round)..lane(round + 1)
    }

    /// The fewest subtrees that cover a round's lanes, in order.
    pub(super) fn subtrees(&self, round: usize) -> impl Iterator<Item = Subtree> {
        let all = self.all;
        let first = self.run.start;
        subtrees(all, self.lanes_of_round(round)).map(move |run| {
            let set = subtrees(all, first..run.start).count();
            Subtree { set, joins: joins(all, first, run.clone()).into(), run }
        })
    }

    /// Number of sets in which sums wait.
    pub(super) fn sets(&self) -> usize {
        let all = (0..self.rounds).flat_map(|round| self.subtrees(round));
        all.map(|subtree| subtree.set + usize::from(subtree.joins == 0)).max().unwrap_or(1).max(1)
    }

    /// Number of sets that hold the group's sum after the last round; they are the first ones.
    pub(super) fn parts(&self) -> usize {
        subtrees(self.all, self.run.clone()).count()
    }

    /// Returns each group's number of parts and the order of additions; `None` for one group.
    pub(super) fn group_tree(&self) -> Result<Option<RankTree>> {
        let groups = self.assignment.groups();
        if groups == 1 {
            return Ok(None);
        }
        if self.reduction == Reduction::Library {
            return Ok(Some(RankTree::balanced(groups)));
        }
        let runs = (0..groups).map(|group| self.assignment.lanes_of_group(group));
        let tree = RankTree::of_runs(self.all, runs);
        let refused = || ParallelError::Grid("the runs of groups do not follow each other".to_owned());
        tree.map(Some).ok_or_else(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::{Assignment, LaneRounds, Reduction};

    fn lane_rounds(lanes: usize, ranks: usize, group: usize, rank: usize) -> LaneRounds {
        LaneRounds::new(Assignment::in_groups(lanes, ranks, group), rank, Reduction::Tree)
    }

    #[test]
    fn rounds_of_a_power_of_two_need_logarithmically_many_sets() {
        for (lanes, ranks, expected) in [
            (1, 1, 1),
            (2, 2, 1),
            (8, 8, 1),
            (8, 4, 1),
            (8, 2, 2),
            (16, 2, 3),
            (8, 3, 2),
            (8, 7, 3),
            (35, 6, 4),
        ] {
            assert_eq!(lane_rounds(lanes, ranks, ranks, 0).sets(), expected, "{lanes} on {ranks}");
        }
        let library = LaneRounds::new(Assignment::round_robin(8, 3), 0, Reduction::Library);
        assert_eq!((library.rounds(), library.sets(), library.parts()), (3, 1, 1));
    }

    #[test]
    fn rounds_add_up_the_tree_over_all_lanes() {
        for lanes in 1..32 {
            let whole = sums(&lane_rounds(lanes, 1, 1, 0));
            assert_eq!(whole.len(), 1);
            for (groups, group) in
                (1..=lanes).flat_map(|groups| (1..=lanes / groups).map(move |n| (groups, n)))
            {
                let of_group = |number: usize| lane_rounds(lanes, groups * group, group, number * group);
                let mut parts: Vec<_> = (0..groups).flat_map(|number| sums(&of_group(number))).collect();
                if let Some(tree) = of_group(0).group_tree().unwrap() {
                    assert_eq!(tree.parts(), parts.len());
                    for (left, right) in tree.tree().additions() {
                        parts[left] = format!("({}+{})", parts[left], parts[right]);
                    }
                }
                assert_eq!(parts[0], whole[0], "{lanes} on {groups} groups of {group}");
            }
        }
    }

    /// The sums of a group at the end of a step, as expressions.
    fn sums(turns: &LaneRounds) -> Vec<String> {
        fn balanced(lanes: std::ops::Range<usize>) -> String {
            match lanes.len() {
                1 => lanes.start.to_string(),
                count => {
                    let middle = lanes.start + count.next_power_of_two() / 2;
                    format!("({}+{})", balanced(lanes.start..middle), balanced(middle..lanes.end))
                }
            }
        }
        let mut waiting: Vec<String> = Vec::new();
        for round in 0..turns.rounds() {
            for subtree in turns.subtrees(round) {
                assert_eq!(waiting.len(), subtree.set);
                let mut upper = balanced(subtree.run);
                for _ in 0..subtree.joins {
                    upper = format!("({}+{upper})", waiting.pop().unwrap());
                }
                waiting.push(upper);
            }
            assert!(waiting.len() <= turns.sets());
        }
        assert_eq!(waiting.len(), turns.parts());
        waiting
    }
}
