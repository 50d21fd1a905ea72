//! The order of additions: a binary tree over any number of leaves.
//!
//! The tree joins complete pairs from the left, as a binary counter carries. A node of height h covers the
//! leaves from i · 2^h to (i + 1) · 2^h, or as many as exist. A node without a right neighbour is carried up
//! unchanged. The tree of a power of two is balanced.

use std::ops::Range;

/// Bits that encode the number of joins of one part.
pub(super) const JOIN_BITS: usize = 4;
/// Number of parts whose joins fit in a word.
pub(super) const PARTS_PER_WORD: usize = u64::BITS as usize / JOIN_BITS;

/// Returns the fewest subtrees that together cover the leaves `range` of the tree over `leaves` leaves, from
/// left to right. A subtree is the range of its leaves.
///
/// ```
/// use tensor::ops::tree::subtrees;
/// assert_eq!(subtrees(12, 3..6).collect::<Vec<_>>(), [3..4, 4..6]);
/// assert_eq!(subtrees(7, 4..7).collect::<Vec<_>>(), [4..7]); // ((4 + 5) + 6), whose sibling is 0..4
/// ```
pub fn subtrees(leaves: usize, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = range.end.min(leaves);
    let mut first = range.start;
    std::iter::from_fn(move || {
        // The ends of the nodes that begin at `first`, by height.
        let ends = (0..usize::BITS).map(|height| 1_usize << height);
        let ends = ends.take_while(|width| first.is_multiple_of(*width));
        let ends = ends.map(|width| first.saturating_add(width).min(leaves));
        let last = ends.take_while(|node| *node <= end).last().filter(|_| first < end)?;
        Some(std::mem::replace(&mut first, last)..last)
    })
}

/// The order in which consecutive parts are added. A part is the sum of a subtree.
///
/// ```
/// use tensor::ops::tree::SumTree;
/// // Three parts: leaves 0 and 1 together, then 2, then 3.
/// let tree = SumTree::from_subtrees(4, [0..2, 2..3, 3..4]).unwrap();
/// assert_eq!(tree.joins(), [0, 0, 2]); // part 2 completes (2 + 3), and that the sum of all
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SumTree {
    joins: Vec<u8>,
}

impl SumTree {
    /// Returns the tree over `parts` single leaves.
    #[must_use]
    pub fn balanced(parts: usize) -> Self {
        SumTree { joins: (0..parts).map(|leaf| joins(parts, 0, leaf..leaf + 1)).collect() }
    }

    /// Returns the order for parts that are subtrees of the tree over `leaves` leaves, from left to right;
    /// `None` if they do not cover the leaves.
    pub fn from_subtrees(leaves: usize, parts: impl IntoIterator<Item = Range<usize>>) -> Option<Self> {
        let mut all = Vec::new();
        let mut next = 0;
        for part in parts {
            if part.start != next || subtrees(leaves, part.clone()).ne([part.clone()]) {
                return None;
            }
            next = part.end;
            all.push(joins(leaves, 0, part));
        }
        (next == leaves && leaves > 0).then_some(SumTree { joins: all })
    }

    /// Returns the number of parts.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.joins.len()
    }

    /// Returns, for each part, how many additions follow it. Each adds the last two partial sums.
    #[must_use]
    pub fn joins(&self) -> &[u8] {
        &self.joins
    }

    /// Returns the joins of each part, packed into words of [`JOIN_BITS`] bits each. Parts that do not fit
    /// are left out.
    pub(super) fn packed<const WORDS: usize>(&self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        for (word, joins) in words.iter_mut().zip(self.joins.chunks(PARTS_PER_WORD)) {
            let joins = joins.iter().enumerate();
            *word = joins.fold(0, |word, (part, joins)| word | u64::from(*joins) << (JOIN_BITS * part));
        }
        words
    }

    /// Returns whether the parts are added as if each were a single leaf.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        *self == SumTree::balanced(self.parts())
    }

    /// Returns the largest number of partial sums held at once: sums whose right sibling is incomplete, and
    /// the current part.
    #[must_use]
    pub fn depth(&self) -> usize {
        let waiting = self.joins.iter().scan(0, |waiting, joins| {
            *waiting += 1;
            let depth = *waiting;
            *waiting -= usize::from(*joins);
            Some(depth)
        });
        waiting.max().unwrap_or(0)
    }

    /// Returns the additions in an order in which operands are complete: for each, the first part of the left
    /// sum and of the right sum.
    pub fn additions(&self) -> impl Iterator<Item = (usize, usize)> {
        let mut waiting: Vec<usize> = Vec::new();
        self.joins.iter().enumerate().flat_map(move |(part, joins)| {
            waiting.push(part);
            let mut add = || Some((*waiting.iter().nth_back(1)?, waiting.pop()?));
            (0..*joins).map_while(|_| add()).collect::<Vec<_>>()
        })
    }
}

/// Returns the number of subtrees that the subtree `part` completes, in a run that begins at leaf `first`.
pub fn joins(leaves: usize, first: usize, part: Range<usize>) -> u8 {
    let before = subtrees(leaves, first..part.start).count();
    // A tree over any number of leaves is at most 64 high.
    (before + 1 - subtrees(leaves, first..part.end).count()) as u8
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::{SumTree, subtrees};

    /// Writes the sum of the leaves `range` as text, by the definition of the tree: the left operand has the
    /// largest power of two below their number.
    fn defined(range: Range<usize>) -> String {
        match range.len() {
            1 => range.start.to_string(),
            count => {
                let middle = range.start + count.next_power_of_two() / 2;
                format!("({}+{})", defined(range.start..middle), defined(middle..range.end))
            }
        }
    }

    /// Writes the sum of `parts` as text, added in the order of `tree`.
    fn sum(tree: &SumTree, mut parts: Vec<String>) -> String {
        for (left, right) in tree.additions() {
            parts[left] = format!("({}+{})", parts[left], parts[right]);
        }
        parts.swap_remove(0)
    }

    #[test]
    fn any_division_into_runs_gives_the_tree_over_all_leaves() {
        for leaves in 1..40 {
            assert_eq!(
                sum(&SumTree::balanced(leaves), (0..leaves).map(|leaf| leaf.to_string()).collect()),
                defined(0..leaves)
            );
            for runs in 1..=leaves {
                let bound = |run: usize| run * (leaves / runs) + run.min(leaves % runs);
                let parts: Vec<_> =
                    (0..runs).flat_map(|run| subtrees(leaves, bound(run)..bound(run + 1))).collect();
                let tree = SumTree::from_subtrees(leaves, parts.clone()).unwrap();
                assert_eq!(sum(&tree, parts.into_iter().map(defined).collect()), defined(0..leaves));
                assert!(tree.depth() <= 1 + usize::BITS as usize - leaves.leading_zeros() as usize);
            }
        }
    }

    #[test]
    fn runs_of_a_power_of_two_are_one_subtree() {
        for leaves in [1_usize, 2, 8, 64] {
            for each in (0..=leaves.ilog2()).map(|power| 1 << power) {
                let runs = (0..leaves / each).map(|run| run * each..(run + 1) * each);
                assert!(runs.clone().all(|run| subtrees(leaves, run.clone()).eq([run])));
                assert!(SumTree::from_subtrees(leaves, runs).unwrap().is_balanced());
            }
        }
    }

    #[test]
    fn parts_that_are_no_subtrees_or_leave_gaps_are_refused() {
        for ends in [&[][..], &[2], &[3, 4], &[4, 5], &[1, 3, 4]] {
            let first = |index: usize| if index == 0 { 0 } else { ends[index - 1] };
            let parts = ends.iter().enumerate().map(|(index, end)| first(index)..*end);
            assert_eq!(SumTree::from_subtrees(4, parts), None, "{ends:?}");
        }
        assert_eq!(SumTree::from_subtrees(4, [0..1, 2..4]), None);
        assert!(!SumTree::from_subtrees(4, [0..2, 2..3, 3..4]).unwrap().is_balanced());
    }
}
