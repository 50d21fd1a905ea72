//! Allocation: use an idle block, else take memory from the driver, else release cached memory and try again.

use super::{Allocation, Allocator};
use crate::block::{Block, BlockId, NONE};
use crate::error::{AllocationError, OutOfMemory};
use crate::free_list::Entry;
use crate::history::Action;
use crate::pool::{LARGE, SMALL};
use crate::raw::{RawError, RawMemory, Stream};
use crate::size::{MIN_BLOCK, REQUEST_LIMIT, SMALL_SIZE, round_request, segment_size};
use crate::statistics::{Metric, PoolKind};
use crate::tag::Tag;

/// Largest number of bytes that a counter can hold.
pub(super) const COUNTABLE: u64 = i64::MAX as u64;

/// State of a request during its allocation.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub(super) bytes: u64,
    /// Bytes of the block, after rounding.
    pub(super) size: u64,
    pub(super) stream: u32,
    pub(super) pool: u32,
    pub(super) tag: Tag,
    /// Whether new memory comes from an expandable segment.
    pub(super) expandable: bool,
}

impl<R: RawMemory> Allocator<R> {
    /// Allocates a block of at least `bytes` on `stream`. A request for 0 bytes returns
    /// [`Allocation::EMPTY`].
    ///
    /// # Errors
    /// [`AllocationError::OutOfMemory`] when neither the cache nor the driver has the memory, even after all
    /// idle memory was returned to the driver; [`AllocationError::RequestTooLarge`];
    /// [`AllocationError::Driver`] when the driver fails for another reason.
    #[inline]
    pub fn allocate(&mut self, bytes: u64, stream: Stream, tag: Tag) -> Result<Allocation, AllocationError> {
        if bytes == 0 {
            return Ok(Allocation::EMPTY);
        }
        if bytes >= REQUEST_LIMIT {
            return Err(AllocationError::RequestTooLarge { bytes });
        }
        self.history.tick();
        if self.open.is_empty() && !(self.waiting.is_empty() && self.deferred.is_empty()) {
            self.process_events()?;
        }
        let divisions = if self.rounds_to_divisions { self.settings.divisions() } else { None };
        let size = round_request(bytes, divisions);
        let stream = self.stream_index(stream);
        let mut pool = if size <= SMALL_SIZE { SMALL } else { LARGE };
        if !self.open.is_empty() {
            pool = self.routed(pool, self.streams[stream as usize]);
        }
        let mut request =
            Request { bytes, size, stream, pool, tag, expandable: self.settings.expandable_segments };
        let block = match self.find_idle(&request) {
            Some(block) => block,
            None => self.obtain(&mut request)?,
        };
        Ok(self.hand_out(block, &request))
    }

    /// Returns the bytes to request from the driver for a block of the request's size.
    pub(super) fn segment_for(&self, request: &Request) -> u64 {
        segment_size(request.size, self.settings.large_segment_size)
    }

    pub(super) fn collects_garbage(&self) -> bool {
        self.limit.is_some() && self.settings.garbage_collection_threshold > 0.0
    }

    /// Removes the best idle block from its pool and returns it.
    #[inline]
    pub(super) fn find_idle(&mut self, request: &Request) -> Option<u32> {
        let collects = self.collects_garbage();
        let pool = &mut self.pools[request.pool as usize];
        if collects {
            pool.lookups += 1;
        }
        let list = &mut pool.lists[request.stream as usize];
        let mut at = list.best_fit(request.size)?;
        if self.blocks[list.at(at).block].expandable() {
            if request.expandable {
                // The best block leaves least of its range's reachable space unused; the search ends when
                // that grows.
                let reach = |entry: Entry| {
                    let next = self.blocks[entry.block].next;
                    let beyond =
                        if next != NONE && !self.blocks[next].mapped { self.blocks[next].size } else { 0 };
                    entry.size + beyond
                };
                while self.blocks[list.at(at).block].expandable()
                    && let Some(next) = list.following(at)
                    && reach(list.at(next)) < reach(list.at(at))
                {
                    at = next;
                }
            } else {
                while self.blocks[list.at(at).block].expandable() {
                    at = list.following(at)?;
                }
            }
        }
        let size = list.at(at).size;
        let largest = self.settings.max_split_size;
        if request.size < largest {
            if size >= largest {
                return None;
            }
        } else if size >= request.size.saturating_add(self.settings.max_non_split_rounding) {
            return None;
        }
        Some(list.take(at).block)
    }

    /// Takes memory from the driver for a block, releasing cached memory first if needed.
    #[cold]
    fn obtain(&mut self, request: &mut Request) -> Result<u32, AllocationError> {
        if self.collects_garbage() {
            self.collect_garbage()?;
        }
        if let Some(block) = self.take_new(request)? {
            return Ok(block);
        }
        if let Some((block, pool)) = self.find_in_overflow(request) {
            request.pool = pool;
            request.expandable = false;
            return Ok(block);
        }
        if self.release_oversize(request)?
            && let Some(block) = self.take_new(request)?
        {
            return Ok(block);
        }
        if self.open.is_empty() {
            self.flush(crate::pool::PoolId::DEFAULT)?;
            self.statistics.num_alloc_retries += 1;
            if let Some(block) = self.take_new(request)? {
                return Ok(block);
            }
        }
        Err(self.out_of_memory(request))
    }

    /// Takes memory from the driver; `None` if the limit is exceeded or the device has too little.
    fn take_new(&mut self, request: &Request) -> Result<Option<u32>, AllocationError> {
        let bytes = self.segment_for(request);
        if self.held.saturating_add(bytes) > self.limit.unwrap_or(COUNTABLE) {
            return Ok(None);
        }
        if request.expandable {
            return self.grow_expandable(request);
        }
        let stream = self.streams[request.stream as usize];
        let placement = match self.raw.allocate(bytes, stream) {
            Ok(placement) => placement,
            Err(RawError::OutOfMemory) => return Ok(None),
            Err(source) => return Err(AllocationError::Driver { call: "allocate memory", source }),
        };
        let address = placement.address;
        if address % MIN_BLOCK != 0 || address.checked_add(bytes).is_none() {
            self.raw.free(address, bytes).map_err(AllocationError::driver("free memory"))?;
            return Err(AllocationError::Misplaced { address });
        }
        self.held += bytes;
        self.count_driver_allocation(request.pool);
        let kind = self.pools[request.pool as usize].kind;
        self.statistics.increase(Metric::Segment, kind, 1);
        self.count_reserved(kind, bytes);
        self.statistics.num_device_alloc += 1;
        if bytes >= self.settings.max_split_size {
            self.statistics.count_oversize_segment(1);
        }
        self.trace_driver(Action::SegmentAlloc, address, bytes, request.stream, request.tag);
        let block = Block::new(address, bytes, placement.order, request.pool, request.stream);
        Ok(Some(self.blocks.insert(block)))
    }

    /// Adds bytes taken from the driver to the counters.
    pub(super) fn count_reserved(&mut self, kind: PoolKind, bytes: u64) {
        self.statistics.increase(Metric::ReservedBytes, kind, bytes);
        self.recent.reserved = self.recent.reserved.max(self.statistics.reserved());
    }

    /// Returns whether to split a block of `size` bytes and return its upper part to the pool.
    #[inline]
    fn splits(&self, request: &Request, size: u64) -> bool {
        let rest = size - request.size;
        let pool = &self.pools[request.pool as usize];
        if pool.no_split {
            false
        } else if pool.is_small() || request.expandable {
            rest >= MIN_BLOCK
        } else {
            request.size < self.settings.max_split_size && rest > SMALL_SIZE
        }
    }

    /// Assigns a block that is in no pool to the request, splitting it if worthwhile.
    #[inline]
    fn hand_out(&mut self, block_index: u32, request: &Request) -> Allocation {
        let kind = self.pools[request.pool as usize].kind;
        let (address, whole, was_split, expandable) = {
            let block = &self.blocks[block_index];
            (block.address, block.size, block.split(), block.expandable())
        };
        let index = if self.splits(request, whole) {
            if !expandable {
                self.count_split_off(kind, was_split, request.size, whole - request.size);
            }
            self.split_off(block_index, request)
        } else {
            if !expandable && was_split {
                self.statistics.change(Metric::InactiveSplitBytes, kind, -(whole as i64));
                self.statistics.change(Metric::InactiveSplit, kind, -1);
            }
            block_index
        };
        let block = &mut self.blocks[index];
        block.allocated = true;
        block.requested = request.bytes;
        block.tag = request.tag;
        let size = block.size;
        let id = BlockId { index, generation: block.generation };
        self.count_handed_out(kind, size, request);
        self.history.record_block(
            Action::Alloc,
            address,
            (request.bytes, size),
            self.streams[request.stream as usize],
            request.tag,
        );
        if let Some(recording) = &mut self.recording {
            let stream = self.streams[request.stream as usize];
            recording.allocated(id, address, (request.bytes, stream, request.tag));
        }
        Allocation { block: id, address, size }
    }

    #[inline]
    fn count_split_off(&mut self, kind: PoolKind, was_split: bool, taken: u64, rest: u64) {
        if was_split {
            self.statistics.change(Metric::InactiveSplitBytes, kind, -(taken as i64));
        } else {
            self.statistics.change(Metric::InactiveSplitBytes, kind, rest as i64);
            self.statistics.change(Metric::InactiveSplit, kind, 1);
        }
    }

    /// Splits off the lower part as a new block. The upper part keeps its identity and returns to the pool.
    #[inline]
    fn split_off(&mut self, block_index: u32, request: &Request) -> u32 {
        let rest = &mut self.blocks[block_index];
        let mut low = Block::new(rest.address, request.size, rest.order, rest.pool, rest.stream);
        low.range = rest.range;
        rest.address += request.size;
        rest.size -= request.size;
        let index = self.blocks.insert(low);
        self.blocks.link_before(index, block_index);
        self.insert_idle(block_index);
        index
    }

    #[inline]
    fn count_handed_out(&mut self, kind: PoolKind, size: u64, request: &Request) {
        let statistics = &mut self.statistics;
        let peak = statistics.metric(Metric::AllocatedBytes, PoolKind::All).peak;
        statistics.increase(Metric::Allocation, kind, 1);
        statistics.increase(Metric::AllocatedBytes, kind, size);
        statistics.increase(Metric::Active, kind, 1);
        statistics.increase(Metric::ActiveBytes, kind, size);
        statistics.increase(Metric::RequestedBytes, kind, request.bytes);
        if size >= self.settings.max_split_size {
            statistics.count_oversize_allocation(1);
        }
        self.at_peak |= statistics.metric(Metric::AllocatedBytes, PoolKind::All).peak > peak;
        self.recent.allocated = self.recent.allocated.max(statistics.allocated());
        self.categories.0[request.tag.category.index()] += size;
    }

    #[cold]
    fn out_of_memory(&mut self, request: &Request) -> AllocationError {
        let capacity = self.raw.capacity();
        let stream = self.streams[request.stream as usize];
        self.history.record(Action::OutOfMemory, capacity.free, request.size, stream, request.tag);
        self.statistics.num_ooms += 1;
        let default_idle =
            [SMALL, LARGE].map(|p| self.pools[p as usize].lists[request.stream as usize].largest());
        AllocationError::OutOfMemory(Box::new(OutOfMemory {
            device: self.device,
            requested: request.bytes,
            rounded: request.size,
            segment: self.segment_for(request),
            total: capacity.total,
            free: capacity.free,
            limit: self.limit,
            allocated: self.statistics.allocated(),
            reserved: self.statistics.reserved(),
            private_idle: self.private_idle_bytes(),
            largest_idle: default_idle[0].max(default_idle[1]),
            expandable_segments: self.settings.expandable_segments,
            stream,
            category: request.tag.category,
            module: self.labels.name(request.tag.module).to_owned(),
            operator: request.tag.operator,
            step: request.tag.step,
        }))
    }
}
