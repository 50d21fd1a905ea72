//! How a region divides into one shard per rank.

use std::ops::Range;

/// Consecutive shards of a region, in bytes; the last ones may be shorter or empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shards {
    bytes: usize,
    shard: usize,
}

impl Shards {
    /// `bytes` bytes in `count` shards of whole elements, all but the last ones equally long.
    pub(crate) fn of_elements(bytes: usize, element: usize, count: usize) -> Self {
        Shards { bytes, shard: (bytes / element).div_ceil(count) * element }
    }

    /// `count` shards of `shard` bytes.
    pub(crate) fn equal(shard: usize, count: usize) -> Self {
        Shards { bytes: shard * count, shard }
    }

    /// Bytes of the longest shard.
    pub(crate) fn longest(self) -> usize {
        self.shard
    }

    /// Bytes of all shards.
    pub(crate) fn total(self) -> usize {
        self.bytes
    }

    /// Where the shard of `rank` lies.
    pub(crate) fn range(self, rank: usize) -> Range<usize> {
        (rank * self.shard).min(self.bytes)..((rank + 1) * self.shard).min(self.bytes)
    }

    /// The part of that shard in pieces of `piece` bytes that is piece number `round`; may be empty.
    pub(crate) fn piece(self, rank: usize, round: usize, piece: usize) -> Range<usize> {
        let Range { start, end } = self.range(rank);
        let at = |round: usize| start.saturating_add(round.saturating_mul(piece)).min(end);
        at(round)..at(round + 1)
    }
}
