//! The tree in which the parts of several ranks are added.

use std::ops::Range;

use tensor::ops::tree::{SumTree, subtrees};

/// Order of additions in a sum over ranks, and each rank's number of parts.
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
    /// Index of each rank's first part, then the number of all parts.
    first_parts: Vec<usize>,
    tree: SumTree,
}

impl RankTree {
    /// Returns the balanced tree over `ranks` ranks with one part each.
    #[must_use]
    pub fn balanced(ranks: usize) -> Self {
        RankTree { first_parts: (0..=ranks).collect(), tree: SumTree::balanced(ranks) }
    }

    /// Returns the tree for ranks that own consecutive `runs` of a tree's `leaves` leaves. A rank's parts are
    /// the fewest subtrees that cover its run. `None` if the runs do not cover the leaves.
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

    /// Number of parts over all ranks.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.tree.parts()
    }

    /// The indices of a rank's parts; empty if the rank does not exist.
    #[must_use]
    pub fn parts_of(&self, rank: usize) -> Range<usize> {
        let first_part = |rank: usize| self.first_parts.get(rank).copied().unwrap_or(self.parts());
        first_part(rank)..first_part(rank + 1)
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

    /// Elements of the workspace of a sum of `elements` elements: one shard of every part.
    #[must_use]
    pub fn scratch_elements(&self, elements: usize) -> usize {
        elements / self.ranks().max(1) * self.parts()
    }
}
