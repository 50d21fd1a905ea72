//! Events of freed blocks that other streams still use. A block becomes idle when its events are done.

use super::Allocator;
use crate::block::NONE;
use crate::error::AllocationError;
use crate::pool::PoolId;
use crate::raw::{EventId, RawMemory, Stream};

pub(super) type Recorded = Vec<(Stream, EventId)>;

impl<R: RawMemory> Allocator<R> {
    /// Records an event on each other stream that uses the block. Changes nothing on failure.
    pub(super) fn record_uses(&mut self, index: u32) -> Result<Recorded, AllocationError> {
        let Some(uses) = &self.blocks[index].uses else { return Ok(Vec::new()) };
        let mut recorded = Vec::new();
        let mut failure = None;
        for (stream, ()) in uses.streams.iter() {
            match self.raw.record_event(stream) {
                Ok(event) => recorded.push((stream, event)),
                Err(source) => {
                    failure = Some(source);
                    break;
                }
            }
        }
        let Some(source) = failure else { return Ok(recorded) };
        // The driver keeps each event until it is reported as done, so they are waited for without a block.
        for (stream, event) in recorded {
            self.waiting.entry(stream, Default::default).push_back((event, NONE));
        }
        Err(AllocationError::Driver { call: "record an event", source })
    }

    /// Queues a freed block behind its events.
    pub(super) fn wait_for(&mut self, index: u32, recorded: Recorded) {
        let block = &mut self.blocks[index];
        block.uses = None;
        block.events += recorded.len() as u32;
        for (stream, event) in recorded {
            self.waiting.entry(stream, Default::default).push_back((event, index));
        }
    }

    /// Completes the frees whose events are done. Checks each stream's events in order and stops at the first
    /// that is not done.
    #[cold]
    pub(super) fn process_events(&mut self) -> Result<(), AllocationError> {
        self.process_deferred()?;
        let mut slot = 0;
        while slot < self.waiting.slot_count() {
            while let Some((event, index)) = self.first_waiting(slot) {
                let done = self.raw.event_done(event).map_err(AllocationError::driver("query an event"))?;
                if !done {
                    break;
                }
                self.pop_waiting(slot, 0);
                self.event_passed(index);
            }
            slot = self.next_slot(slot);
        }
        Ok(())
    }

    fn first_waiting(&mut self, slot: usize) -> Option<(EventId, u32)> {
        self.waiting.slot(slot).and_then(|(_, queue)| queue.front().copied())
    }

    fn pop_waiting(&mut self, slot: usize, position: usize) {
        if let Some((_, queue)) = self.waiting.slot(slot) {
            queue.remove(position);
        }
    }

    /// Returns the next slot of the table of queues. Erases an empty queue, whose slot is then visited again.
    fn next_slot(&mut self, slot: usize) -> usize {
        if self.waiting.slot(slot).is_some_and(|(_, queue)| queue.is_empty()) {
            self.waiting.erase(slot);
            return slot;
        }
        slot + 1
    }

    fn event_passed(&mut self, index: u32) {
        if index == NONE {
            return;
        }
        let block = &mut self.blocks[index];
        block.events -= 1;
        if block.events == 0 && block.uses.is_none() {
            self.complete_free(index);
        }
    }

    /// Records the events of blocks that were freed while a private pool was open.
    fn process_deferred(&mut self) -> Result<(), AllocationError> {
        while let Some(&index) = self.deferred.first() {
            if let Some(uses) = &mut self.blocks[index].uses {
                for stream in std::mem::take(&mut uses.while_open) {
                    if let Some(slot) = uses.streams.find(stream) {
                        uses.streams.erase(slot);
                    }
                }
            }
            let recorded = self.record_uses(index)?;
            self.deferred.remove(0);
            self.wait_for(index, recorded);
            if self.blocks[index].events == 0 {
                self.complete_free(index);
            }
        }
        Ok(())
    }

    /// Waits for all events, or for the events of one private pool's blocks, and completes the frees.
    pub(super) fn synchronize_events(&mut self, pool: Option<PoolId>) -> Result<(), AllocationError> {
        self.statistics.num_sync_all_streams += 1;
        self.process_deferred()?;
        let mut slot = 0;
        while slot < self.waiting.slot_count() {
            let mut position = 0;
            while let Some((event, index)) =
                self.waiting.slot(slot).and_then(|(_, queue)| queue.get(position).copied())
            {
                let concerned = match pool {
                    Some(id) => index != NONE && self.pool_id(self.blocks[index].pool) == id,
                    None => true,
                };
                if !concerned {
                    position += 1;
                    continue;
                }
                self.raw.event_wait(event).map_err(AllocationError::driver("wait for an event"))?;
                self.pop_waiting(slot, position);
                self.event_passed(index);
            }
            slot = self.next_slot(slot);
        }
        Ok(())
    }
}
