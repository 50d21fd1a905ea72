//! Expandable segments: virtual ranges that grow by mapping pages on demand.

use super::Allocator;
use super::allocate::{COUNTABLE, Request};
use super::range::Range;
use crate::block::{Block, NONE};
use crate::error::AllocationError;
use crate::history::Action;
use crate::raw::{RawError, RawMemory};
use crate::size::{MIN_BLOCK, SMALL_SEGMENT, round_up};
use crate::statistics::Metric;
use crate::tag::Tag;

impl<R: RawMemory> Allocator<R> {
    /// Returns a mapped block of at least the request's size, removed from its pool; `None` if the driver is
    /// out of memory.
    pub(super) fn grow_expandable(&mut self, request: &Request) -> Result<Option<u32>, AllocationError> {
        let Some(mut block) = self.find_reachable(request)? else { return Ok(None) };
        if !self.blocks[block].mapped {
            let bytes = self.blocks[block].size.min(request.size);
            if !self.map_block(block, bytes, request.tag)? {
                return Ok(None);
            }
        }
        while self.blocks[block].size < request.size {
            let next = self.blocks[block].next;
            if next == NONE {
                return Ok(None);
            }
            let bytes = (request.size - self.blocks[block].size).min(self.blocks[next].size);
            if !self.map_block(next, bytes, request.tag)? {
                return Ok(None);
            }
            // The grown block has absorbed the mapped block in front of it.
            block = next;
        }
        self.remove_idle(block);
        self.count_driver_allocation(request.pool);
        Ok(Some(block))
    }

    /// Finds the first idle block that, together with the idle blocks after it (mapped or not), is large
    /// enough.
    fn find_reachable(&mut self, request: &Request) -> Result<Option<u32>, AllocationError> {
        for &unmapped in &self.pools[request.pool as usize].unmapped[request.stream as usize] {
            let prev = self.blocks[unmapped].prev;
            let start = if prev != NONE && self.blocks[prev].idle() { prev } else { unmapped };
            let mut bytes = 0;
            let mut at = start;
            while bytes < request.size && at != NONE && self.blocks[at].idle() {
                bytes += self.blocks[at].size;
                at = self.blocks[at].next;
            }
            if bytes >= request.size {
                return Ok(Some(start));
            }
        }
        self.reserve_range(request)
    }

    fn reserve_range(&mut self, request: &Request) -> Result<Option<u32>, AllocationError> {
        let small = self.pools[request.pool as usize].is_small();
        let page = if small { SMALL_SEGMENT } else { self.settings.large_segment_size };
        // The size is limited to what a counter can hold; no device is larger.
        let bytes = round_up((self.total.saturating_add(self.total / 8)).min(COUNTABLE - page), page);
        let stream = self.streams[request.stream as usize];
        let placement = match self.raw.reserve(bytes, stream) {
            Ok(placement) => placement,
            Err(RawError::OutOfMemory) => return Ok(None),
            Err(source) => return Err(AllocationError::Driver { call: "reserve a range", source }),
        };
        let address = placement.address;
        if address % MIN_BLOCK != 0 || address.checked_add(bytes).is_none() {
            self.raw.unreserve(address, bytes).map_err(AllocationError::driver("give a range back"))?;
            return Err(AllocationError::Misplaced { address });
        }
        let range = Some(Range { address, bytes, page });
        let position = self.ranges.iter().position(Option::is_none).unwrap_or(self.ranges.len());
        if position == self.ranges.len() {
            self.ranges.push(range);
        } else {
            self.ranges[position] = range;
        }
        let mut block = Block::new(address, bytes, placement.order, request.pool, request.stream);
        block.mapped = false;
        block.range = position as u32;
        let index = self.blocks.insert(block);
        self.insert_unmapped(index);
        Ok(Some(index))
    }

    /// Maps the pages that hold the first `bytes` of an unmapped block, which becomes an idle mapped block
    /// merged with its neighbours. Returns `false` if the driver is out of memory.
    fn map_block(&mut self, index: u32, bytes: u64, tag: Tag) -> Result<bool, AllocationError> {
        let block = &self.blocks[index];
        let Some(range) = self.ranges.get(block.range as usize).copied().flatten() else { return Ok(false) };
        let (address, size, stream, kind) =
            (block.address, block.size, block.stream, self.pools[block.pool as usize].kind);
        let mapped = round_up(bytes, range.page);
        if self.held.saturating_add(mapped) > COUNTABLE {
            return Ok(false);
        }
        match self.raw.map(address, mapped, range.page, self.streams[stream as usize]) {
            Ok(()) => {}
            Err(RawError::OutOfMemory) => return Ok(false),
            Err(source) => return Err(AllocationError::Driver { call: "map pages", source }),
        }
        self.remove_unmapped(index);
        if mapped < size {
            let block = &self.blocks[index];
            let mut rest = Block::new(address + mapped, size - mapped, block.order, block.pool, stream);
            rest.mapped = false;
            rest.range = block.range;
            let rest = self.blocks.insert(rest);
            self.blocks.link_after(rest, index);
            self.insert_unmapped(rest);
        }
        let block = &mut self.blocks[index];
        block.size = mapped;
        block.mapped = true;
        let prev = block.prev;
        let next = block.next;
        self.merge(index, prev);
        self.merge(index, next);
        self.insert_idle(index);
        self.held += mapped;
        self.count_reserved(kind, mapped);
        self.statistics.num_device_alloc += 1;
        self.trace_driver(Action::SegmentMap, address, mapped, stream, tag);
        Ok(true)
    }

    /// Unmaps the whole pages of an idle block, and releases its range if nothing else is mapped there.
    pub(super) fn unmap_block(&mut self, index: u32) -> Result<(), AllocationError> {
        let block = &self.blocks[index];
        let Some(range) = self.ranges.get(block.range as usize).copied().flatten() else { return Ok(()) };
        let start = block.address;
        let end = block.address + block.size;
        let first = range.address + round_up(start - range.address, range.page);
        let last = range.address + (end - range.address) / range.page * range.page;
        if first >= last {
            return Ok(());
        }
        let bytes = last - first;
        let pool = block.pool;
        let stream = block.stream;
        let tag = block.tag;
        let kind = self.pools[pool as usize].kind;
        self.raw.unmap(first, bytes, range.page).map_err(AllocationError::driver("unmap pages"))?;
        self.remove_idle(index);
        self.cut_leftovers(index, first, last);
        self.held -= bytes;
        self.count_driver_release(pool);
        self.statistics.decrease(Metric::ReservedBytes, kind, bytes);
        self.statistics.num_device_free += 1;
        self.trace_driver(Action::SegmentUnmap, first, bytes, stream, tag);
        if self.blocks[index].split() { Ok(()) } else { self.drop_range(index) }
    }

    /// Marks `first..last` of an idle block as unmapped; the bytes outside stay mapped and idle.
    fn cut_leftovers(&mut self, index: u32, first: u64, last: u64) {
        let block = &self.blocks[index];
        let start = block.address;
        let end = block.address + block.size;
        let part = |address, size| {
            let mut part = Block::new(address, size, block.order, block.pool, block.stream);
            part.range = block.range;
            part
        };
        let before = (start < first).then(|| part(start, first - start));
        let after = (last < end).then(|| part(last, end - last));
        if let Some(before) = before {
            let before = self.blocks.insert(before);
            self.blocks.link_before(before, index);
            self.insert_idle(before);
        }
        if let Some(after) = after {
            let after = self.blocks.insert(after);
            self.blocks.link_after(after, index);
            self.insert_idle(after);
        }
        let block = &mut self.blocks[index];
        block.address = first;
        block.size = last - first;
        block.mapped = false;
        let prev = block.prev;
        let next = block.next;
        self.merge(index, prev);
        self.merge(index, next);
        self.insert_unmapped(index);
    }

    /// Releases a range that consists of one unmapped block.
    fn drop_range(&mut self, index: u32) -> Result<(), AllocationError> {
        let position = self.blocks[index].range as usize;
        let Some(range) = self.ranges.get(position).copied().flatten() else { return Ok(()) };
        self.raw
            .unreserve(range.address, range.bytes)
            .map_err(AllocationError::driver("give a range back"))?;
        self.remove_unmapped(index);
        self.blocks.remove(index);
        self.ranges[position] = None;
        Ok(())
    }

    /// Releases the ranges of a pool that have no mapped pages.
    pub(super) fn drop_unmapped_ranges(&mut self, pool: u32) -> Result<(), AllocationError> {
        for stream in 0..self.streams.len() {
            for index in self.pools[pool as usize].unmapped[stream].clone() {
                if !self.blocks[index].split() {
                    self.drop_range(index)?;
                }
            }
        }
        Ok(())
    }

    fn place_unmapped(&self, index: u32) -> (u32, u32, usize) {
        let block = &self.blocks[index];
        let key = (block.order, block.address);
        let list = &self.pools[block.pool as usize].unmapped[block.stream as usize];
        let position =
            list.partition_point(|other| (self.blocks[*other].order, self.blocks[*other].address) < key);
        (block.pool, block.stream, position)
    }

    fn insert_unmapped(&mut self, index: u32) {
        let (pool, stream, position) = self.place_unmapped(index);
        self.pools[pool as usize].unmapped[stream as usize].insert(position, index);
    }

    pub(super) fn remove_unmapped(&mut self, index: u32) {
        let (pool, stream, position) = self.place_unmapped(index);
        self.pools[pool as usize].unmapped[stream as usize].remove(position);
    }

    /// Returns all ranges to the driver, ignoring errors.
    pub(super) fn return_ranges(&mut self) {
        for (_, block) in self.blocks.iter().filter(|(_, b)| b.expandable() && b.mapped) {
            let Some(range) = self.ranges.get(block.range as usize).copied().flatten() else { continue };
            // Pages are unmapped with the block that holds their first byte.
            let offset = block.address - range.address;
            let first = range.address + round_up(offset, range.page);
            let last = range.address + round_up(offset + block.size, range.page);
            if first < last {
                let _ = self.raw.unmap(first, last - first, range.page);
            }
        }
        for range in self.ranges.iter().flatten() {
            let _ = self.raw.unreserve(range.address, range.bytes);
        }
    }
}
