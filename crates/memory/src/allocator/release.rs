//! Releasing memory to the driver: all idle segments, or idle blocks that are too large to be split.

use super::Allocator;
use super::allocate::Request;
use crate::block::NONE;
use crate::error::AllocationError;
use crate::history::Action;
use crate::pool::{LARGE, PoolId, SMALL};
use crate::raw::RawMemory;
use crate::statistics::Metric;

impl<R: RawMemory> Allocator<R> {
    /// Returns every unused segment to the driver, after waiting for other streams. Segments of private pools
    /// that have users are kept.
    ///
    /// # Errors
    /// [`AllocationError::Driver`]; memory returned before the failure stays returned.
    pub fn empty_cache(&mut self) -> Result<(), AllocationError> {
        self.flush_pool(PoolId::DEFAULT)
    }

    /// Releases the default pools and all private pools without users, or one private pool without users.
    pub(super) fn flush(&mut self, target: PoolId) -> Result<(), AllocationError> {
        if target == PoolId::DEFAULT && self.open.is_empty() {
            self.synchronize_events(None)?;
            self.release_pool(LARGE)?;
            self.release_pool(SMALL)?;
        }
        let mut slot = 0;
        while slot < self.freeable.slot_count() {
            let Some((id, ())) = self.freeable.slot(slot) else {
                slot += 1;
                continue;
            };
            if target != PoolId::DEFAULT {
                if id != target {
                    slot += 1;
                    continue;
                }
                if self.open.is_empty() {
                    self.synchronize_events(Some(id))?;
                }
            }
            let (small, large) = self.pools_of(id);
            self.release_pool(small)?;
            self.release_pool(large)?;
            if self.is_spent(id) {
                self.forget_pool(id)?;
                self.freeable.erase(slot);
            } else {
                slot += 1;
            }
        }
        Ok(())
    }

    /// Frees the unsplit blocks of a pool, then unmaps whole pages of its expandable segments.
    fn release_pool(&mut self, pool: u32) -> Result<(), AllocationError> {
        let mut expandable = Vec::new();
        for stream in self.streams_in_order() {
            let idle: Vec<u32> =
                self.pools[pool as usize].lists[stream as usize].iter().map(|e| e.block).collect();
            for index in idle {
                let block = &self.blocks[index];
                if block.expandable() {
                    expandable.push(index);
                } else if !block.split() {
                    self.release_segment(index)?;
                }
            }
        }
        for index in expandable {
            self.unmap_block(index)?;
        }
        Ok(())
    }

    /// Returns an idle block that is a whole segment to the driver.
    pub(super) fn release_segment(&mut self, index: u32) -> Result<(), AllocationError> {
        let block = &self.blocks[index];
        let address = block.address;
        let size = block.size;
        let stream = block.stream;
        let tag = block.tag;
        let pool = block.pool;
        let kind = self.pools[pool as usize].kind;
        self.raw.free(address, size).map_err(AllocationError::driver("free memory"))?;
        self.trace_driver(Action::SegmentFree, address, size, stream, tag);
        self.remove_idle(index);
        self.blocks.remove(index);
        self.held -= size;
        self.count_driver_release(pool);
        self.statistics.num_device_free += 1;
        self.statistics.decrease(Metric::Segment, kind, 1);
        self.statistics.decrease(Metric::ReservedBytes, kind, size);
        if size >= self.settings.max_split_size {
            self.statistics.count_oversize_segment(-1);
        }
        Ok(())
    }

    /// Makes room by releasing idle blocks that are too large to be split: the smallest sufficient one, or
    /// the largest ones until they suffice. Returns whether enough was released.
    pub(super) fn release_oversize(&mut self, request: &Request) -> Result<bool, AllocationError> {
        let limit = self.settings.max_split_size;
        if limit == u64::MAX {
            return Ok(false);
        }
        let needed = request.size.max(limit);
        let list = &self.pools[request.pool as usize].lists[request.stream as usize];
        let first = list.best_fit(needed).map(|at| list.at(at).block);
        // After the limit was lowered, blocks above it may be parts of a segment; those cannot be released
        // alone.
        if let Some(index) = first
            && !self.blocks[index].expandable()
            && !self.blocks[index].split()
        {
            self.release_segment(index)?;
            return Ok(true);
        }
        let below: Vec<u32> =
            list.iter().rev().filter(|e| e.size < needed && e.size >= limit).map(|e| e.block).collect();
        let mut released = 0;
        for index in below {
            if released >= needed {
                break;
            }
            let block = &self.blocks[index];
            if !block.expandable() && !block.split() {
                released += block.size;
                self.release_segment(index)?;
            }
        }
        Ok(released >= needed)
    }

    /// Returns every segment and range to the driver, used or not, ignoring errors.
    pub(super) fn return_everything(&mut self) {
        let heads: Vec<(u64, u64)> = self
            .blocks
            .iter()
            .filter(|(_, block)| !block.expandable() && block.prev == NONE)
            .map(|(index, block)| (block.address, self.segment_end(index) - block.address))
            .collect();
        for (address, size) in heads {
            // The allocator is being dropped, so no caller could handle an error.
            let _ = self.raw.free(address, size);
        }
        self.return_ranges();
    }

    /// Returns the first address after the segment of a block.
    pub(super) fn segment_end(&self, index: u32) -> u64 {
        let mut at = index;
        while self.blocks[at].next != NONE {
            at = self.blocks[at].next;
        }
        self.blocks[at].address + self.blocks[at].size
    }
}
