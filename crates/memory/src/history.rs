//! The history of events, in a ring of fixed capacity.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::raw::Stream;
use crate::tag::Tag;

system::names! {
    /// Kind of an event.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Action {
        /// A block was allocated; the size is the requested size.
        Alloc = "alloc",
        /// The owner freed a block.
        FreeRequested = "free_requested",
        /// A freed block became reusable.
        FreeCompleted = "free_completed",
        /// A segment was taken from the driver.
        SegmentAlloc = "segment_alloc",
        /// A segment was returned to the driver.
        SegmentFree = "segment_free",
        /// Pages were mapped into an expandable segment.
        SegmentMap = "segment_map",
        /// Pages were unmapped.
        SegmentUnmap = "segment_unmap",
        /// A snapshot was taken.
        Snapshot = "snapshot",
        /// A request failed. The address is the device's free bytes, the size is the rounded request.
        OutOfMemory = "oom",
        /// A mark set by the caller. The tag's operator is the name of the section that begins, and the
        /// address its number.
        Mark = "mark",
    }
}

/// An event of the allocator, as recorded in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Kind of the event.
    pub action: Action,
    /// Address; for [`Action::OutOfMemory`] the free bytes of the device.
    pub address: u64,
    /// Bytes; for blocks, the requested bytes.
    pub size: u64,
    /// Bytes of the whole block, rounding included. For events of other kinds, equal to `size`.
    pub block: u64,
    /// Stream of the event.
    pub stream: Stream,
    /// Time of the event in microseconds since 1970.
    pub time_us: u64,
    /// Tag of the request.
    pub tag: Tag,
}

/// The ring of events; off until a capacity is set.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    capacity: usize,
    events: VecDeque<Event>,
    /// Start time of the current operation. All its events carry this time, so the clock is read once.
    now_us: u64,
    /// Digest of the events since it was last taken; `None` unless started.
    digest: Option<u64>,
}

/// Number of events for which memory is reserved at once, so that recording rarely has to grow the ring.
const ROOM: usize = 1 << 17;

impl History {
    /// Clears the ring, reusing its memory, and sets its capacity to `capacity` events; 0 stops recording.
    pub(crate) fn set_capacity(&mut self, capacity: usize) {
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        match capacity {
            0 => events = VecDeque::new(),
            _ => events.reserve(capacity.min(ROOM)),
        }
        *self = History { capacity, events, ..History::default() };
    }

    /// Starts a digest of later events.
    pub(crate) fn start_digest(&mut self) {
        self.digest = Some(0);
    }

    /// Returns the digest since it was started or last taken; 0 if it was not started.
    pub(crate) fn take_digest(&mut self) -> u64 {
        self.digest.as_mut().map_or(0, std::mem::take)
    }

    /// Reads the clock for the operation that begins, if events are recorded.
    #[inline]
    pub(crate) fn tick(&mut self) {
        if self.on() {
            self.now_us = now_us();
        }
    }

    #[inline]
    pub(crate) fn on(&self) -> bool {
        self.capacity > 0
    }

    #[inline]
    pub(crate) fn record(&mut self, action: Action, address: u64, size: u64, stream: Stream, tag: Tag) {
        self.record_block(action, address, (size, size), stream, tag);
    }

    /// Records an event of a block, with the requested bytes and the block's size.
    #[inline]
    pub(crate) fn record_block(
        &mut self,
        action: Action,
        address: u64,
        (size, block): (u64, u64),
        stream: Stream,
        tag: Tag,
    ) {
        if let Some(digest) = &mut self.digest
            && action != Action::Mark
        {
            let Tag { category, module, operator, .. } = tag;
            let who = [category.index() as u64, u64::from(module.0), operator.as_ptr().addr() as u64];
            let what = [action as u64, address, size, block, stream.0];
            for word in what.into_iter().chain(who) {
                *digest = mixed(*digest ^ word);
            }
        }
        if self.on() {
            self.push(Event { action, address, size, block, stream, time_us: self.now_us, tag });
        }
    }

    #[inline(never)]
    fn push(&mut self, event: Event) {
        if self.events.len() == self.capacity {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// Returns the recorded events, oldest first.
    pub(crate) fn events(&mut self) -> &[Event] {
        self.events.make_contiguous()
    }
}

/// Returns SplitMix64's mixture of a word: each bit of the result depends on each bit of `word`.
fn mixed(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64)
}
