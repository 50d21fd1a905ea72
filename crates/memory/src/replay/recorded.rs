//! The driver of a recorded trace: it hands out the recorded addresses and reports requests that differ from
//! the recording.

use std::collections::BTreeMap;

use system::numbers::grouped;

use super::recording::SegmentEvent;
use crate::raw::{Capacity, EventId, Placement, RawError, RawMemory, Stream};

/// A driver that answers with the recorded driver's results.
#[derive(Clone, Debug)]
pub struct Recorded {
    events: Vec<SegmentEvent>,
    next: usize,
    total: u64,
    /// Segments and map operations that the current operation may still take.
    granted: u64,
    /// Virtual ranges handed out, as bytes by first address.
    ranges: BTreeMap<u64, u64>,
    /// Requests, since [`Recorded::take_refused`], that the recording does not have at this point.
    refused: Vec<String>,
    /// Returns of memory, since [`Recorded::take_problems`], that differ from the recording.
    problems: Vec<String>,
    recorded: u64,
}

impl Recorded {
    /// Creates a device of `total` bytes whose driver answers with `events`, in this order.
    #[must_use]
    pub fn new(events: Vec<SegmentEvent>, total: u64) -> Recorded {
        Recorded {
            events,
            next: 0,
            total,
            granted: u64::MAX,
            ranges: BTreeMap::new(),
            refused: Vec::new(),
            problems: Vec::new(),
            recorded: 0,
        }
    }

    /// Sets how many segments and map operations the recorded driver provided in the next operation. Events
    /// do not name their operation, and on a full device the next event may belong to a later one.
    pub fn grant(&mut self, allocations: u64) {
        self.granted = allocations;
    }

    /// Returns the requests answered with out of memory because the recording has none at that point. This is
    /// correct if the recorded device was full, and otherwise a mismatch.
    pub fn take_refused(&mut self) -> Vec<String> {
        std::mem::take(&mut self.refused)
    }

    /// Returns descriptions of returned memory that differs from the recording.
    pub fn take_problems(&mut self) -> Vec<String> {
        std::mem::take(&mut self.problems)
    }

    /// Returns the events that have not been replayed yet.
    #[must_use]
    pub fn left(&self) -> &[SegmentEvent] {
        &self.events[self.next..]
    }

    fn expected(&self) -> String {
        match self.left().first() {
            Some(e) => {
                format!(
                    "{} of {} bytes at {:#x} on stream {:#x}",
                    e.action,
                    grouped(e.bytes),
                    e.address,
                    e.stream.0
                )
            }
            None => "nothing more".to_owned(),
        }
    }

    /// Consumes the next event if it satisfies `is_it`, and returns its address.
    fn advance(&mut self, is_it: impl Fn(&SegmentEvent) -> bool) -> Option<u64> {
        let event = self.left().first().filter(|event| is_it(event))?;
        let address = event.address;
        self.next += 1;
        Some(address)
    }

    /// Calls [`Recorded::advance`] only while the current operation may still allocate.
    fn advance_granted(&mut self, is_it: impl Fn(&SegmentEvent) -> bool) -> Option<u64> {
        let left = self.granted.checked_sub(1)?;
        let address = self.advance(is_it)?;
        self.granted = left;
        Some(address)
    }

    fn refuse<T>(&mut self, request: String) -> Result<T, RawError> {
        let expected = self.expected();
        self.refused.push(format!("{request} was requested where the recording has {expected}"));
        Err(RawError::OutOfMemory)
    }

    fn give_back(&mut self, action: &str, address: u64, bytes: u64) {
        if self.advance(|e| e.action == action && e.address == address && e.bytes == bytes).is_none() {
            let expected = self.expected();
            self.problems.push(format!(
                "{action} of {} bytes at {address:#x}, the recording has {expected}",
                grouped(bytes)
            ));
        }
    }

    fn in_a_range(&self, address: u64) -> bool {
        self.ranges.range(..=address).next_back().is_some_and(|(start, bytes)| address - start < *bytes)
    }
}

impl RawMemory for Recorded {
    fn allocate(&mut self, bytes: u64, stream: Stream) -> Result<Placement, RawError> {
        match self.advance_granted(|e| e.action == "segment_alloc" && e.bytes == bytes && e.stream == stream)
        {
            Some(address) => Ok(Placement { address, order: address }),
            None => self.refuse(format!("a segment of {} bytes on stream {:#x}", grouped(bytes), stream.0)),
        }
    }

    fn free(&mut self, address: u64, bytes: u64) -> Result<(), RawError> {
        self.give_back("segment_free", address, bytes);
        Ok(())
    }

    fn reserve(&mut self, bytes: u64, stream: Stream) -> Result<Placement, RawError> {
        // A new range is mapped from its start at once; if mapping failed, the range is requested again.
        let mapped = |e: &SegmentEvent| e.action == "segment_map" && e.stream == stream;
        let next = self.left().first().filter(|e| mapped(e) && !self.in_a_range(e.address));
        match next.filter(|_| self.granted > 0).map(|e| e.address) {
            Some(address) => {
                self.ranges.insert(address, bytes);
                Ok(Placement { address, order: address })
            }
            None => self.refuse(format!("a range of {} bytes on stream {:#x}", grouped(bytes), stream.0)),
        }
    }

    fn unreserve(&mut self, address: u64, _bytes: u64) -> Result<(), RawError> {
        self.ranges.remove(&address);
        Ok(())
    }

    fn map(&mut self, address: u64, bytes: u64, _page: u64, stream: Stream) -> Result<(), RawError> {
        let is_it = |e: &SegmentEvent| {
            e.action == "segment_map" && e.address == address && e.bytes == bytes && e.stream == stream
        };
        match self.advance_granted(is_it) {
            Some(_) => Ok(()),
            None => self.refuse(format!(
                "a map of {} bytes at {address:#x} on stream {:#x}",
                grouped(bytes),
                stream.0
            )),
        }
    }

    fn unmap(&mut self, address: u64, bytes: u64, _page: u64) -> Result<(), RawError> {
        self.give_back("segment_unmap", address, bytes);
        Ok(())
    }

    /// Reports all memory as free: a recording does not contain the free bytes.
    fn capacity(&self) -> Capacity {
        Capacity { free: 0, total: self.total }
    }

    fn record_event(&mut self, _stream: Stream) -> Result<EventId, RawError> {
        self.recorded += 1;
        Ok(EventId(self.recorded))
    }

    /// Returns true: the recorded program synchronised the device after every free.
    fn event_done(&mut self, _event: EventId) -> Result<bool, RawError> {
        Ok(true)
    }

    fn event_wait(&mut self, _event: EventId) -> Result<(), RawError> {
        Ok(())
    }
}
