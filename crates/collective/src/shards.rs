//! Shards of a region, one per rank.

use std::ops::Range;

/// Consecutive shards of a region in bytes, one per rank. The last ones may be shorter or empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByteShards {
    bytes: usize,
    shard: usize,
}

impl ByteShards {
    /// Splits `bytes` bytes into `count` shards of whole elements, equally long except the last ones.
    pub(crate) fn of_elements(bytes: usize, element: usize, count: usize) -> Self {
        ByteShards { bytes, shard: (bytes / element).div_ceil(count) * element }
    }

    /// Creates `count` shards of `shard` bytes.
    pub(crate) fn equal(shard: usize, count: usize) -> Self {
        ByteShards { bytes: shard * count, shard }
    }

    /// Bytes of the longest shard.
    pub(crate) fn longest(self) -> usize {
        self.shard
    }

    /// Bytes of all shards.
    pub(crate) fn total(self) -> usize {
        self.bytes
    }

    /// Byte range of `rank`'s shard.
    pub(crate) fn range(self, rank: usize) -> Range<usize> {
        (rank * self.shard).min(self.bytes)..((rank + 1) * self.shard).min(self.bytes)
    }

    /// Byte range of chunk `round` of `rank`'s shard, in chunks of `chunk` bytes; may be shorter or empty.
    pub(crate) fn chunk(self, rank: usize, round: usize, chunk: usize) -> Range<usize> {
        let Range { start, end } = self.range(rank);
        let at = |round: usize| start.saturating_add(round.saturating_mul(chunk)).min(end);
        at(round)..at(round + 1)
    }
}
