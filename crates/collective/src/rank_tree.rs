//! The tree by which the parts of several ranks are added.

use std::ops::Range;

use tensor::ops::tree::{SumTree, subtrees};

/// The parts of a sum over ranks: the number that each rank has, and the order in which all are added.
///
/// ```
/// use collective::RankTree;
/// // Three ranks with 3, 3 and 2 of eight leaves: (0 + 1), 2; 3, (4 + 5); (6 + 7).
/// let tree = RankTree::of_runs(8, [0..3, 3..6, 6..8]).unwrap();
/// assert_eq!((tree.parts(), tree.parts_of(1)), (5, 2..4));
/// assert!(!tree.has_one_part_each());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankTree {
    /// Number of the first part of each rank, and the number of all.
    first_parts: Vec<usize>,
    tree: SumTree,
}

impl RankTree {
    /// Returns the balanced tree over `ranks` ranks with one part each.
    #[must_use]
    pub fn balanced(ranks: usize) -> Self {
        RankTree { first_parts: (0..=ranks).collect(), tree: SumTree::balanced(ranks) }
    }

    /// Returns the parts of ranks that own consecutive `runs` of the `leaves` leaves of a tree: the fewest
    /// subtrees that cover each run. `None` if the runs do not cover the leaves.
    pub fn of_runs(leaves: usize, runs: impl IntoIterator<Item = Range<usize>>) -> Option<Self> {
        let mut first_parts = vec![0];
        let mut parts = Vec::new();
        for run in runs {
            parts.extend(subtrees(leaves, run));
            first_parts.push(parts.len());
        }
        Some(RankTree { first_parts, tree: SumTree::from_subtrees(leaves, parts)? })
    }

    /// Number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.first_parts.len() - 1
    }

    /// Number of parts of all ranks.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.tree.parts()
    }

    /// The numbers of a rank's parts; empty for a rank that does not exist.
    #[must_use]
    pub fn parts_of(&self, rank: usize) -> Range<usize> {
        let of = |rank: usize| self.first_parts.get(rank).copied().unwrap_or(self.parts());
        of(rank)..of(rank + 1)
    }

    /// The order of additions.
    #[must_use]
    pub fn tree(&self) -> &SumTree {
        &self.tree
    }

    /// Returns whether each rank has one part.
    #[must_use]
    pub fn has_one_part_each(&self) -> bool {
        self.parts() == self.ranks()
    }

    /// Number of elements of the workspace of a sum of `elements` elements: a shard of each part.
    #[must_use]
    pub fn scratch_elements(&self, elements: usize) -> usize {
        elements / self.ranks().max(1) * self.parts()
    }
}
