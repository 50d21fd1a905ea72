//! The idle blocks of one pool and one stream, in the order (size, placement order, address).
//!
//! Blocks are binned by size: one bin per size below 16 KiB, and 32 bins between two powers of two above.
//! Bins are in size order, a bitmap marks the bins that are not empty, and each bin is a short sorted queue.
//! An insertion moves the elements on its shorter side. The best fit is the first sufficient block, in the
//! first bin that holds one. Nothing is hashed, and nothing is allocated once the bins have grown.

use std::collections::VecDeque;

use crate::block::Block;

const STEPS: usize = 32;
/// Number of bins. Sizes below 2⁶⁴ are fewer than 2⁵⁵ granules of 512 bytes.
const BINS: usize = STEPS * 51;
const WORDS: usize = BINS.div_ceil(64);

/// An idle block with its sort key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(crate) size: u64,
    order: u64,
    address: u64,
    pub(crate) block: u32,
}

impl Entry {
    #[inline]
    pub(crate) fn from_block(index: u32, block: &Block) -> Entry {
        Entry { size: block.size, order: block.order, address: block.address, block: index }
    }

    #[inline]
    fn key(&self) -> (u64, u64, u64) {
        (self.size, self.order, self.address)
    }
}

/// A position in the list: a bin and an index in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    bin: usize,
    index: usize,
}

#[derive(Debug)]
pub(crate) struct FreeList {
    /// The bins, each sorted in descending order, so that the smallest entry is popped from the end.
    bins: Vec<VecDeque<Entry>>,
    occupied: [u64; WORDS],
    /// Bitmap of the words of `occupied` that are not zero.
    summary: u32,
}

const _: () = assert!(WORDS <= 32);

#[inline]
fn bin_of(size: u64) -> usize {
    let granules = size >> 9;
    if granules < STEPS as u64 {
        return granules as usize;
    }
    let power = granules.ilog2() as usize;
    STEPS * (power - 4) + ((granules >> (power - 5)) as usize & (STEPS - 1))
}

impl FreeList {
    pub(crate) fn new() -> FreeList {
        FreeList { bins: Vec::new(), occupied: [0; WORDS], summary: 0 }
    }

    #[inline]
    pub(crate) fn insert(&mut self, entry: Entry) {
        if self.bins.is_empty() {
            self.bins.resize_with(BINS, VecDeque::new);
        }
        let bin = bin_of(entry.size);
        let entries = &mut self.bins[bin];
        let key = entry.key();
        if entries.back().is_none_or(|last| last.key() > key) {
            entries.push_back(entry);
        } else {
            let number = entries.partition_point(|e| e.key() > key);
            entries.insert(number, entry);
        }
        self.occupied[bin / 64] |= 1 << (bin % 64);
        self.summary |= 1 << (bin / 64);
    }

    #[inline]
    pub(crate) fn remove(&mut self, entry: Entry) {
        let key = entry.key();
        let bin = bin_of(entry.size);
        let Some(entries) = self.bins.get(bin) else { return };
        let index = if entries.back().is_some_and(|last| last.key() == key) {
            entries.len() - 1
        } else {
            entries.partition_point(|e| e.key() > key)
        };
        self.take(Cursor { bin, index });
    }

    #[inline]
    pub(crate) fn take(&mut self, at: Cursor) -> Entry {
        let entries = &mut self.bins[at.bin];
        let entry = entries[at.index];
        entries.remove(at.index);
        if entries.is_empty() {
            self.occupied[at.bin / 64] &= !(1 << (at.bin % 64));
            if self.occupied[at.bin / 64] == 0 {
                self.summary &= !(1 << (at.bin / 64));
            }
        }
        entry
    }

    #[inline]
    pub(crate) fn at(&self, at: Cursor) -> Entry {
        self.bins[at.bin][at.index]
    }

    /// Returns the position of the first block with at least `size` bytes.
    #[inline]
    pub(crate) fn best_fit(&self, size: u64) -> Option<Cursor> {
        if self.summary == 0 {
            return None;
        }
        let bin = bin_of(size);
        let entries = &self.bins[bin];
        let sufficient = match entries.back() {
            Some(last) if last.size >= size => entries.len(),
            _ => entries.partition_point(|e| e.size >= size),
        };
        if sufficient > 0 {
            return Some(Cursor { bin, index: sufficient - 1 });
        }
        self.first_of_bins_from(bin + 1)
    }

    pub(crate) fn following(&self, at: Cursor) -> Option<Cursor> {
        if at.index > 0 {
            return Some(Cursor { bin: at.bin, index: at.index - 1 });
        }
        self.first_of_bins_from(at.bin + 1)
    }

    #[inline]
    fn first_of_bins_from(&self, bin: usize) -> Option<Cursor> {
        if bin >= BINS {
            return None;
        }
        let word = bin / 64;
        let here = self.occupied[word] & (!0 << (bin % 64));
        let bin = if here != 0 {
            word * 64 + here.trailing_zeros() as usize
        } else {
            let above = self.summary & (!0u32).checked_shl(word as u32 + 1).unwrap_or(0);
            if above == 0 {
                return None;
            }
            let word = above.trailing_zeros() as usize;
            word * 64 + self.occupied[word].trailing_zeros() as usize
        };
        Some(Cursor { bin, index: self.bins[bin].len() - 1 })
    }

    /// Returns all blocks in order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = Entry> + '_ {
        self.bins.iter().flat_map(|bin| bin.iter().rev().copied())
    }

    /// Returns the size of the largest block; 0 if the list is empty.
    pub(crate) fn largest(&self) -> u64 {
        self.iter().next_back().map_or(0, |entry| entry.size)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bins_are_in_size_order() {
        let sizes = (1..4096u64).map(|g| g << 9).chain((21..63u32).flat_map(|p| [1u64 << p, (1 << p) + 512]));
        let bins: Vec<usize> = sizes.map(bin_of).collect();
        assert!(bins.is_sorted());
        assert!(bin_of(u64::MAX) < BINS);
    }

    proptest! {
        #[test]
        fn agrees_with_a_sorted_set(
            operations in prop::collection::vec((0u8..4, 1u64..200_000, 0u64..4), 1..300),
        ) {
            let mut list = FreeList::new();
            let mut model = BTreeSet::new();
            for (index, (kind, granules, order)) in operations.into_iter().enumerate() {
                let size = granules << 9;
                if kind < 2 {
                    let entry = Entry { size, order, address: index as u64 * 7919 % 1000, block: index as u32 };
                    list.insert(entry);
                    model.insert(entry);
                } else if kind == 2 {
                    let probe = Entry { size, order: 0, address: 0, block: 0 };
                    let expected = model.range(probe..).next().copied();
                    let fit = list.best_fit(size);
                    prop_assert_eq!(fit.map(|at| list.at(at)), expected);
                    if let (Some(at), Some(entry)) = (fit, expected) {
                        prop_assert_eq!(list.following(at).map(|at| list.at(at)), model.range(entry..).nth(1).copied());
                        list.take(at);
                        model.remove(&entry);
                    }
                } else if let Some(entry) = model.iter().nth(granules as usize % model.len().max(1)).copied() {
                    list.remove(entry);
                    model.remove(&entry);
                }
                prop_assert!(list.iter().eq(model.iter().copied()));
            }
        }
    }
}
