//! Executes the operations of a recording, without looking at the expected results.

use super::recorded::Recorded;
use super::recording::{Operation, Recording};
use crate::allocator::{Allocation, Allocator};
use crate::block::BlockId;
use crate::drivers::Counting;
use crate::error::AllocationError;
use crate::pool::StreamFilter;
use crate::raw::{Capacity, EventId, Placement, RawError, RawMemory, Stream};
use crate::settings::Settings;
use crate::tag::Tag;

/// The driver of a replay.
#[derive(Clone, Debug)]
pub enum Driver {
    /// Answers with the recorded driver's results.
    Recorded(Recorded),
    /// Simulates a device that counts bytes.
    Counting(Counting),
}

macro_rules! either {
    ($self:ident, $driver:ident => $call:expr) => {
        match $self {
            Driver::Recorded($driver) => $call,
            Driver::Counting($driver) => $call,
        }
    };
}

impl RawMemory for Driver {
    fn allocate(&mut self, bytes: u64, stream: Stream) -> Result<Placement, RawError> {
        either!(self, d => d.allocate(bytes, stream))
    }
    fn free(&mut self, address: u64, bytes: u64) -> Result<(), RawError> {
        either!(self, d => d.free(address, bytes))
    }
    fn reserve(&mut self, bytes: u64, stream: Stream) -> Result<Placement, RawError> {
        either!(self, d => d.reserve(bytes, stream))
    }
    fn unreserve(&mut self, address: u64, bytes: u64) -> Result<(), RawError> {
        either!(self, d => d.unreserve(address, bytes))
    }
    fn map(&mut self, address: u64, bytes: u64, page: u64, stream: Stream) -> Result<(), RawError> {
        either!(self, d => d.map(address, bytes, page, stream))
    }
    fn unmap(&mut self, address: u64, bytes: u64, page: u64) -> Result<(), RawError> {
        either!(self, d => d.unmap(address, bytes, page))
    }
    fn capacity(&self) -> Capacity {
        either!(self, d => d.capacity())
    }
    fn record_event(&mut self, stream: Stream) -> Result<EventId, RawError> {
        either!(self, d => d.record_event(stream))
    }
    fn event_done(&mut self, event: EventId) -> Result<bool, RawError> {
        either!(self, d => d.event_done(event))
    }
    fn event_wait(&mut self, event: EventId) -> Result<(), RawError> {
        either!(self, d => d.event_wait(event))
    }
}

/// An allocator in the recording's initial state, and the blocks that its operations refer to.
#[derive(Debug)]
pub struct Player {
    /// The allocator under test.
    pub allocator: Allocator<Driver>,
    blocks: Vec<BlockId>,
}

impl Player {
    /// Starts the replay of a recording.
    ///
    /// # Errors
    /// [`AllocationError::Settings`] if the recording's settings are invalid.
    pub fn new(recording: &Recording) -> Result<Player, AllocationError> {
        let driver = match &recording.segment_events {
            Some(events) => Driver::Recorded(Recorded::new(events.clone(), recording.total)),
            None => Driver::Counting(Counting::new(recording.total)),
        };
        let mut allocator = Allocator::new(driver, Settings::parse(&recording.settings)?)?;
        match (recording.limit_fraction, recording.limit_bytes) {
            (Some(fraction), _) => allocator.set_memory_fraction(fraction),
            (None, Some(bytes)) => allocator.set_limit_bytes(Some(bytes)),
            (None, None) => {}
        }
        Ok(Player { allocator, blocks: vec![BlockId::NULL; recording.blocks as usize] })
    }

    /// Executes one operation. Returns its allocation, if it makes one.
    #[inline]
    pub fn play(&mut self, operation: &Operation) -> Result<Option<Allocation>, AllocationError> {
        match operation {
            Operation::Allocate { id, bytes, stream, .. } => {
                let allocation = self.allocator.allocate(*bytes, *stream, Tag::default())?;
                self.blocks[*id as usize] = allocation.block;
                return Ok(Some(allocation));
            }
            Operation::Free(id) => {
                let block = std::mem::replace(&mut self.blocks[*id as usize], BlockId::NULL);
                self.allocator.free(block)?;
            }
            other => self.play_rare(other)?,
        }
        Ok(None)
    }

    fn play_rare(&mut self, operation: &Operation) -> Result<(), AllocationError> {
        let allocator = &mut self.allocator;
        match operation {
            Operation::Allocate { .. } | Operation::Free(_) => {}
            Operation::RecordStream(id, stream) => {
                allocator.record_stream(self.blocks[*id as usize], *stream)?;
            }
            Operation::Finish(stream) => {
                if let Driver::Counting(driver) = allocator.raw_mut() {
                    driver.finish(*stream);
                }
            }
            Operation::EmptyCache => allocator.empty_cache()?,
            Operation::FlushPool(id) => allocator.flush_pool(*id)?,
            Operation::ResetPeak => allocator.reset_peak(),
            Operation::ResetAccumulated => allocator.reset_accumulated(),
            Operation::Configure(text) => allocator.configure(text)?,
            Operation::MemoryFraction(fraction) => allocator.set_memory_fraction(*fraction),
            Operation::Others(bytes) => {
                if let Driver::Counting(driver) = allocator.raw_mut() {
                    driver.set_others(*bytes);
                }
            }
            Operation::BeginPool(id, only) => {
                let filter = only.map_or(StreamFilter::All, |stream| StreamFilter::Only(vec![stream]));
                allocator.begin_pool(*id, filter)?;
            }
            Operation::EndPool(id) => allocator.end_pool(*id)?,
            Operation::ReleasePool(id) => allocator.release_pool_user(*id)?,
            Operation::NoSplit(id) => allocator.set_no_split(*id),
        }
        Ok(())
    }
}
