//! Drivers that hand out addresses without memory.

use std::collections::{BTreeMap, HashMap};

use crate::raw::{Capacity, EventId, Placement, RawError, RawMemory, Stream};

const SEGMENTS_FROM: u64 = 0x7f00_0000_0000;
const RANGES_FROM: u64 = 0x3000_0000_0000;
const SEGMENT_STEP: u64 = 2 << 20;
const RANGE_GAP: u64 = 1 << 30;

/// A simulated device that only counts. It refuses requests that do not fit. Work on its streams finishes
/// when a test calls [`Counting::finish`].
///
/// Segments get rising addresses that are never reused. Virtual ranges have a separate area of addresses.
#[derive(Clone, Debug)]
pub struct Counting {
    total: u64,
    used: u64,
    others: u64,
    next_segment: u64,
    next_range: u64,
    /// Bytes of each segment, by first address.
    segments: HashMap<u64, u64>,
    /// Bytes and stream of each virtual range, by first address.
    ranges: BTreeMap<u64, (u64, Stream)>,
    /// Stream and sequence number of each event not yet reported as done.
    events: HashMap<EventId, (Stream, u64)>,
    recorded: u64,
    /// Sequence number up to which each stream's work is finished.
    finished: HashMap<Stream, u64>,
}

fn refused(text: &str) -> RawError {
    RawError::Driver { code: 1, text: text.to_owned() }
}

impl Counting {
    /// Creates a device of `total` bytes.
    #[must_use]
    pub fn new(total: u64) -> Counting {
        Counting {
            total,
            used: 0,
            others: 0,
            next_segment: SEGMENTS_FROM,
            next_range: RANGES_FROM,
            segments: HashMap::new(),
            ranges: BTreeMap::new(),
            events: HashMap::new(),
            recorded: 0,
            finished: HashMap::new(),
        }
    }

    /// Sets the bytes of the device that other processes use.
    pub fn set_others(&mut self, bytes: u64) {
        self.others = bytes;
    }

    /// Returns the bytes handed out: segments and mapped pages.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Returns the number of reserved virtual ranges.
    #[must_use]
    pub fn reserved_ranges(&self) -> usize {
        self.ranges.len()
    }

    /// Marks all work enqueued on `stream` so far as finished.
    pub fn finish(&mut self, stream: Stream) {
        self.finished.insert(stream, self.recorded);
    }

    fn take(&mut self, bytes: u64) -> Result<(), RawError> {
        let used = self.used.saturating_add(bytes);
        if used.saturating_add(self.others) > self.total {
            return Err(RawError::OutOfMemory);
        }
        self.used = used;
        Ok(())
    }

    /// Finds the range that holds an address.
    fn range_at(&self, address: u64) -> Option<(u64, u64, Stream)> {
        let (&start, &(bytes, stream)) = self.ranges.range(..=address).next_back()?;
        (address < start + bytes).then_some((start, bytes, stream))
    }
}

impl RawMemory for Counting {
    fn allocate(&mut self, bytes: u64, _stream: Stream) -> Result<Placement, RawError> {
        let address = self.next_segment;
        let step = bytes.checked_next_multiple_of(SEGMENT_STEP).ok_or(RawError::OutOfMemory)?;
        let next = address.checked_add(step).ok_or(RawError::OutOfMemory)?;
        self.take(bytes)?;
        self.next_segment = next;
        self.segments.insert(address, bytes);
        Ok(Placement { address, order: address })
    }

    fn free(&mut self, address: u64, bytes: u64) -> Result<(), RawError> {
        if self.segments.get(&address) != Some(&bytes) {
            return Err(refused("the address is not the start of a segment"));
        }
        self.segments.remove(&address);
        self.used -= bytes;
        Ok(())
    }

    fn reserve(&mut self, bytes: u64, stream: Stream) -> Result<Placement, RawError> {
        let address = self.next_range;
        let next = address.checked_add(bytes).and_then(|end| end.checked_add(RANGE_GAP));
        self.next_range = next.ok_or(RawError::OutOfMemory)?;
        self.ranges.insert(address, (bytes, stream));
        Ok(Placement { address, order: address })
    }

    fn unreserve(&mut self, address: u64, bytes: u64) -> Result<(), RawError> {
        if self.ranges.get(&address).is_none_or(|(size, _)| *size != bytes) {
            return Err(refused("the address is not the start of a range"));
        }
        self.ranges.remove(&address);
        Ok(())
    }

    fn map(&mut self, address: u64, bytes: u64, _page: u64, _stream: Stream) -> Result<(), RawError> {
        match self.range_at(address) {
            Some((start, size, _)) if address + bytes <= start + size => self.take(bytes),
            _ => Err(refused("the pages do not lie in a range")),
        }
    }

    fn unmap(&mut self, address: u64, bytes: u64, _page: u64) -> Result<(), RawError> {
        let Some((_, _, stream)) = self.range_at(address) else {
            return Err(refused("the address is not in a range"));
        };
        self.finish(stream);
        self.used -= bytes;
        Ok(())
    }

    fn capacity(&self) -> Capacity {
        Capacity { free: self.total.saturating_sub(self.used + self.others), total: self.total }
    }

    fn record_event(&mut self, stream: Stream) -> Result<EventId, RawError> {
        self.recorded += 1;
        let event = EventId(self.recorded);
        self.events.insert(event, (stream, self.recorded));
        Ok(event)
    }

    fn event_done(&mut self, event: EventId) -> Result<bool, RawError> {
        let Some(&(stream, number)) = self.events.get(&event) else {
            return Err(refused("the event is not known"));
        };
        let done = self.finished.get(&stream).is_some_and(|finished| *finished >= number);
        if done {
            self.events.remove(&event);
        }
        Ok(done)
    }

    fn event_wait(&mut self, event: EventId) -> Result<(), RawError> {
        let Some((stream, number)) = self.events.remove(&event) else {
            return Err(refused("the event is not known"));
        };
        let finished = self.finished.entry(stream).or_default();
        *finished = (*finished).max(number);
        Ok(())
    }
}
