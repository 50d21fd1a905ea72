//! Inspection of the allocator: properties of blocks, and fragmentation.

use serde::{Deserialize, Serialize};

use super::Allocator;
use crate::block::{BlockId, NONE};
use crate::error::AllocationError;
use crate::raw::{RawMemory, Stream};
use crate::statistics::{Metric, PoolKind};
use crate::tag::Tag;

/// Properties of an allocated block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// First address.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// Requested bytes.
    pub requested: u64,
    /// Stream that the block was allocated on.
    pub stream: Stream,
    /// Tag of the request.
    pub tag: Tag,
}

/// Fragmentation of the held memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fragmentation {
    /// Bytes of allocated blocks.
    pub allocated: u64,
    /// Bytes held from the driver.
    pub reserved: u64,
    /// Idle bytes in segments that are partly used, which `empty_cache` cannot return.
    pub inactive_split: u64,
    /// Bytes of allocated blocks beyond the requested sizes.
    pub rounding: u64,
    /// Size of the largest idle block of any stream: the largest request that can be served without the
    /// driver.
    pub largest_idle: u64,
}

impl Fragmentation {
    /// Returns the bytes held per allocated byte; 1 if nothing is held, infinite if all of it is idle.
    #[must_use]
    pub fn reserved_over_allocated(&self) -> f64 {
        if self.reserved == 0 { 1.0 } else { self.reserved as f64 / self.allocated as f64 }
    }
}

/// The position and state of a block, without addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPosition {
    /// Index of the block's segment or virtual range, in the order in which the driver provided them.
    pub segment: usize,
    /// Bytes from the start of the segment or range.
    pub offset: u64,
    /// Size in bytes.
    pub size: u64,
    /// Stream of the block.
    pub stream: Stream,
    /// Whether the block lies in a pool for small blocks.
    pub small: bool,
    /// Whether the block is idle.
    pub idle: bool,
    /// Whether the block is backed by memory.
    pub mapped: bool,
}

impl<R: RawMemory> Allocator<R> {
    /// Returns the positions of all blocks, segment by segment. Two allocators with equal layouts serve equal
    /// requests equally, unless blocks are released by their age.
    pub fn layout(&self) -> Vec<BlockPosition> {
        let mut blocks: Vec<_> = self.blocks.iter().map(|(_, block)| block).collect();
        blocks.sort_unstable_by_key(|block| (block.order, block.address));
        let mut layout = Vec::with_capacity(blocks.len());
        for (segment, blocks) in blocks.chunk_by(|a, b| a.order == b.order).enumerate() {
            let range = blocks[0].range;
            let range = self.ranges.get(range as usize).copied().flatten();
            let start = range.map_or(blocks[0].address, |range| range.address);
            layout.extend(blocks.iter().map(|block| BlockPosition {
                segment,
                offset: block.address - start,
                size: block.size,
                stream: self.streams[block.stream as usize],
                small: self.pools[block.pool as usize].is_small(),
                idle: block.idle(),
                mapped: block.mapped,
            }));
        }
        layout
    }

    /// Returns the properties of an allocated block.
    ///
    /// # Errors
    /// [`AllocationError::InvalidBlock`].
    pub fn block(&self, id: BlockId) -> Result<BlockInfo, AllocationError> {
        let block = self.blocks.allocated(id).ok_or(AllocationError::InvalidBlock { index: id.index })?;
        Ok(BlockInfo {
            address: block.address,
            size: block.size,
            requested: block.requested,
            stream: self.streams[block.stream as usize],
            tag: block.tag,
        })
    }

    /// Returns the size of the largest idle block of a stream in the default pools.
    pub fn largest_available(&self, stream: Stream) -> u64 {
        let Some(index) = self.streams.iter().position(|other| *other == stream) else { return 0 };
        self.pools
            .iter()
            .filter(|pool| pool.is_default())
            .map(|pool| pool.lists[index].largest())
            .max()
            .unwrap_or(0)
    }

    /// Returns the fragmentation of the held memory.
    pub fn fragmentation(&self) -> Fragmentation {
        let current = |metric| self.statistics.metric(metric, PoolKind::All).current as u64;
        let idle = |(_, block): &(u32, &crate::block::Block)| block.idle() && block.mapped;
        // The statistics leave out expandable segments, so their idle blocks beside used ones are counted
        // here.
        let inactive_split = self.blocks.iter().filter(idle).filter(|(_, b)| self.has_mapped_neighbour(b));
        Fragmentation {
            allocated: self.statistics.allocated(),
            reserved: self.statistics.reserved(),
            inactive_split: inactive_split.map(|(_, b)| b.size).sum(),
            rounding: current(Metric::ActiveBytes) - current(Metric::RequestedBytes),
            largest_idle: self.blocks.iter().filter(idle).map(|(_, b)| b.size).max().unwrap_or(0),
        }
    }

    fn has_mapped_neighbour(&self, block: &crate::block::Block) -> bool {
        [block.prev, block.next].into_iter().any(|n| n != NONE && self.blocks[n].mapped)
    }
}
