//! Freeing: a block returns to its pool at once, or when the streams that used it have finished with it.

use super::Allocator;
use crate::block::{BlockId, NONE, StreamUses};
use crate::error::AllocationError;
use crate::free_list::Entry;
use crate::history::Action;
use crate::raw::{RawMemory, Stream};
use crate::statistics::Metric;

impl<R: RawMemory> Allocator<R> {
    /// Frees a block. Never requests memory from the driver or returns memory to it.
    ///
    /// # Errors
    /// [`AllocationError::InvalidBlock`] for a block that is not allocated; [`AllocationError::Driver`] if an
    /// event cannot be recorded: the block then stays allocated.
    #[inline]
    pub fn free(&mut self, id: BlockId) -> Result<(), AllocationError> {
        if id == BlockId::NULL {
            return Ok(());
        }
        let Some(block) = self.blocks.allocated(id) else {
            return Err(AllocationError::InvalidBlock { index: id.index });
        };
        let used_elsewhere = block.uses.is_some();
        self.history.tick();
        if let Some(recording) = &mut self.recording {
            recording.freed(id);
        }
        if used_elsewhere && self.open.is_empty() {
            // Fallible steps come first, so that a failure changes nothing.
            let uses = self.record_uses(id.index)?;
            self.give_up(id.index);
            self.wait_for(id.index, uses);
        } else {
            self.give_up(id.index);
            if used_elsewhere {
                self.deferred.push(id.index);
            } else {
                self.complete_free(id.index);
            }
        }
        Ok(())
    }

    /// Updates the counters for a block that its owner freed.
    #[inline]
    fn give_up(&mut self, index: u32) {
        let block = &mut self.blocks[index];
        block.allocated = false;
        block.generation = block.generation.wrapping_add(1);
        let size = block.size;
        let tag = block.tag;
        let kind = self.pools[block.pool as usize].kind;
        if self.at_peak {
            self.peak_categories = self.categories;
            self.at_peak = false;
        }
        self.categories.0[tag.category.index()] -= size;
        self.statistics.decrease(Metric::Allocation, kind, 1);
        self.statistics.decrease(Metric::AllocatedBytes, kind, size);
        if size >= self.settings.max_split_size {
            self.statistics.count_oversize_allocation(-1);
        }
        let block = &self.blocks[index];
        let stream = self.streams[block.stream as usize];
        self.history.record_block(Action::FreeRequested, block.address, (block.requested, size), stream, tag);
    }

    /// Records that work on `stream` uses the block. Freeing the block then waits for all work enqueued on
    /// that stream by the time of the free.
    ///
    /// # Errors
    /// [`AllocationError::InvalidBlock`] for a block that is not allocated.
    pub fn record_stream(&mut self, id: BlockId, stream: Stream) -> Result<(), AllocationError> {
        if id == BlockId::NULL {
            return Ok(());
        }
        let Some(block) = self.blocks.allocated(id) else {
            return Err(AllocationError::InvalidBlock { index: id.index });
        };
        if self.streams[block.stream as usize] == stream {
            return Ok(());
        }
        let pool_is_open = !self.open.is_empty();
        let uses: &mut StreamUses = self.blocks[id.index].uses.get_or_insert_default();
        uses.streams.entry(stream, || ());
        if pool_is_open && !uses.while_open.contains(&stream) {
            uses.while_open.push(stream);
        }
        Ok(())
    }

    /// Returns an unused block to its pool, merged with its idle neighbours.
    #[inline]
    pub(super) fn complete_free(&mut self, index: u32) {
        let block = &self.blocks[index];
        let size = block.size;
        let requested = block.requested;
        let expandable = block.expandable();
        let stream = self.streams[block.stream as usize];
        let kind = self.pools[block.pool as usize].kind;
        let address = block.address;
        let tag = block.tag;
        self.history.record_block(Action::FreeCompleted, address, (requested, size), stream, tag);
        let prev = block.prev;
        let next = block.next;
        let mut absorbed = (0i64, 0i64);
        for neighbour in [prev, next] {
            if let Some(bytes) = self.merge(index, neighbour) {
                absorbed = (absorbed.0 + 1, absorbed.1 + bytes as i64);
            }
        }
        self.insert_idle(index);
        if !expandable {
            let block = &self.blocks[index];
            let own = if block.split() { (1, block.size as i64) } else { (0, 0) };
            self.statistics.change(Metric::InactiveSplit, kind, own.0 - absorbed.0);
            self.statistics.change(Metric::InactiveSplitBytes, kind, own.1 - absorbed.1);
        }
        self.statistics.decrease(Metric::Active, kind, 1);
        self.statistics.decrease(Metric::ActiveBytes, kind, size);
        self.statistics.decrease(Metric::RequestedBytes, kind, requested);
    }

    /// Merges an idle neighbour into a block that is in no pool. Returns the neighbour's bytes; `None` if it
    /// is not idle.
    #[inline]
    pub(super) fn merge(&mut self, index: u32, neighbour: u32) -> Option<u64> {
        if neighbour == NONE {
            return None;
        }
        let other = &self.blocks[neighbour];
        if !other.idle() || other.mapped != self.blocks[index].mapped {
            return None;
        }
        let bytes = other.size;
        if other.mapped {
            let pool = &mut self.pools[other.pool as usize];
            pool.lists[other.stream as usize].remove(Entry::from_block(neighbour, other));
        } else {
            self.remove_unmapped(neighbour);
        }
        self.blocks.absorb(index, neighbour);
        Some(bytes)
    }

    /// Inserts an idle mapped block into its pool, without merging.
    #[inline]
    pub(super) fn insert_idle(&mut self, index: u32) {
        let block = &mut self.blocks[index];
        let pool = &mut self.pools[block.pool as usize];
        block.gc_base = pool.lookups;
        pool.lists[block.stream as usize].insert(Entry::from_block(index, block));
    }

    /// Removes an idle mapped block from its pool.
    pub(super) fn remove_idle(&mut self, index: u32) {
        let block = &self.blocks[index];
        self.pools[block.pool as usize].lists[block.stream as usize].remove(Entry::from_block(index, block));
    }
}
