//! The allocator's state, with the operations that only read or configure it.

use std::collections::{BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use crate::block::{BlockId, Slab};
use crate::error::AllocationError;
use crate::hash_order::Table;
use crate::history::{Action, History};
use crate::pool::{Pool, PoolId, PrivatePool, StreamFilter};
use crate::raw::{EventId, RawMemory, Stream};
use crate::script::Recording;
use crate::settings::Settings;
use crate::statistics::{PoolKind, Statistics};
use crate::tag::{CategoryBytes, Label, Labels, Tag};

mod allocate;
mod audit;
mod collect;
mod events;
mod expandable;
mod free;
mod inspect;
mod private;
mod range;
mod release;
mod repeat;
mod snapshot;

pub use inspect::{BlockInfo, BlockPosition, Fragmentation};
use range::Range;
pub use snapshot::{BlockState, Snapshot, SnapshotBlock, SnapshotSegment};

/// An allocated block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Identifier with which the block is freed.
    pub block: BlockId,
    /// First address; a multiple of 512.
    pub address: u64,
    /// Size in bytes, at least as large as requested.
    pub size: u64,
}

impl Allocation {
    /// The result of a zero-byte request.
    pub const EMPTY: Allocation = Allocation { block: BlockId::NULL, address: 0, size: 0 };
}

/// Bytes of allocated blocks, and bytes held from the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes of allocated blocks.
    pub allocated: u64,
    /// Bytes held from the driver.
    pub reserved: u64,
}

impl Usage {
    /// Returns the maximum of each field.
    #[must_use]
    pub fn most(self, other: Self) -> Self {
        Usage { allocated: self.allocated.max(other.allocated), reserved: self.reserved.max(other.reserved) }
    }
}

/// A caching allocator over a driver. See the crate's documentation.
#[derive(Debug)]
pub struct Allocator<R: RawMemory> {
    raw: R,
    settings: Settings,
    /// Whether `settings` round requests to divisions of powers of two.
    rounds_to_divisions: bool,
    device: u32,
    total: u64,
    limit: Option<u64>,
    /// Bytes obtained from the driver.
    held: u64,
    streams: Vec<Stream>,
    blocks: Slab,
    pools: Vec<Pool>,
    private: Vec<PrivatePool>,
    /// Open private pools, most recently opened last.
    open: Vec<(PoolId, StreamFilter)>,
    /// Private pools without users.
    freeable: Table<PoolId, ()>,
    no_split: BTreeSet<PoolId>,
    /// Private pools that may serve default requests when memory is out, in the order of their search.
    use_on_oom: Table<PoolId, ()>,
    ranges: Vec<Option<Range>>,
    /// Events that freed blocks wait for, in order, keyed by the stream on which they were recorded.
    waiting: Table<Stream, VecDeque<(EventId, u32)>>,
    /// Blocks that were freed with uses on other streams while a private pool was open.
    deferred: Vec<u32>,
    statistics: Statistics,
    categories: CategoryBytes,
    peak_categories: CategoryBytes,
    /// Whether allocated bytes are at their peak now, so that `peak_categories` is out of date.
    at_peak: bool,
    recent: Usage,
    history: History,
    /// The script that is being recorded.
    recording: Option<Box<Recording>>,
    labels: Labels,
}

impl<R: RawMemory> Allocator<R> {
    /// Creates an allocator that holds no memory yet.
    ///
    /// # Errors
    /// None today: the driver is first called by the first request.
    pub fn new(raw: R, settings: Settings) -> Result<Self, AllocationError> {
        let total = raw.capacity().total;
        let mut allocator = Allocator {
            raw,
            rounds_to_divisions: settings.divisions().is_some(),
            settings,
            device: 0,
            total,
            limit: None,
            held: 0,
            streams: Vec::new(),
            blocks: Slab::default(),
            pools: vec![
                Pool::new(PoolKind::Small, crate::block::NONE),
                Pool::new(PoolKind::Large, crate::block::NONE),
            ],
            private: Vec::new(),
            open: Vec::new(),
            freeable: Table::default(),
            no_split: BTreeSet::new(),
            use_on_oom: Table::default(),
            ranges: Vec::new(),
            waiting: Table::default(),
            deferred: Vec::new(),
            statistics: Statistics::default(),
            categories: CategoryBytes::default(),
            peak_categories: CategoryBytes::default(),
            at_peak: true,
            recent: Usage::default(),
            history: History::default(),
            recording: None,
            labels: Labels::default(),
        };
        allocator.statistics.max_split_size = match allocator.settings.max_split_size {
            u64::MAX => -1,
            bytes => bytes as i64,
        };
        allocator.set_memory_fraction(allocator.settings.per_process_memory_fraction);
        Ok(allocator)
    }

    /// Sets the device number shown in messages and snapshots; 0 by default.
    #[must_use]
    pub fn on_device(mut self, device: u32) -> Self {
        self.device = device;
        self
    }

    /// Returns the device number shown in messages and snapshots.
    pub fn device(&self) -> u32 {
        self.device
    }

    /// Returns the driver.
    pub fn raw(&self) -> &R {
        &self.raw
    }

    /// Returns the driver for calls that do not concern memory. Memory that the allocator holds must not be
    /// touched.
    pub fn raw_mut(&mut self) -> &mut R {
        &mut self.raw
    }

    /// Returns the current settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes settings at run time, as [`Settings::updated`] describes. The memory fraction is not applied
    /// again.
    ///
    /// # Errors
    /// [`AllocationError::Settings`] with the invalid key; nothing has changed then.
    pub fn configure(&mut self, text: &str) -> Result<(), AllocationError> {
        let settings = self.settings.updated(text)?;
        self.rounds_to_divisions = settings.divisions().is_some();
        self.settings = settings;
        Ok(())
    }

    /// Limits the bytes held from the driver. Memory beyond the limit that is held already stays usable.
    pub fn set_limit_bytes(&mut self, limit: Option<u64>) {
        self.limit = limit;
    }

    /// Limits the held bytes to a fraction of the device: ⌊`fraction` · total⌋ bytes, or the whole device for
    /// 1 or more. A negative fraction is treated as 0.
    pub fn set_memory_fraction(&mut self, fraction: f64) {
        self.limit = (fraction < 1.0).then(|| (fraction.max(0.0) * self.total as f64) as u64);
    }

    /// Returns the limit in bytes, if any.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.limit
    }

    /// Returns the maximum bytes that may be held: the limit, or the whole device.
    pub fn capacity(&self) -> u64 {
        self.limit.map_or(self.total, |limit| limit.min(self.total))
    }

    /// Returns all counters.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Returns the bytes of allocated blocks by category; their sum is `allocated_bytes`.
    pub fn category_bytes(&self) -> CategoryBytes {
        self.categories
    }

    /// Returns the bytes by category at the moment when `allocated_bytes` reached its peak.
    pub fn peak_category_bytes(&self) -> CategoryBytes {
        if self.at_peak { self.categories } else { self.peak_categories }
    }

    /// Returns the bytes allocated and reserved now.
    pub fn usage(&self) -> Usage {
        Usage { allocated: self.statistics.allocated(), reserved: self.statistics.reserved() }
    }

    /// Returns the peaks of allocated and reserved bytes since the last call, each at its own time, and
    /// restarts both at the current bytes. The peaks of [`Allocator::statistics`] are not affected.
    pub fn take_recent_peak(&mut self) -> Usage {
        let now = self.usage();
        std::mem::replace(&mut self.recent, now).most(now)
    }

    /// Resets every peak to its current value.
    pub fn reset_peak(&mut self) {
        self.statistics.reset_peak();
        self.at_peak = true;
    }

    /// Resets the sums of increases and decreases, and the counters of events, to 0.
    pub fn reset_accumulated(&mut self) {
        self.statistics.reset_accumulated();
    }

    /// Keeps the last `events` events from now on; 0 stops recording and clears the history.
    pub fn record_history(&mut self, events: usize) {
        self.history.set_capacity(events);
    }

    /// Adds a mark to the history: start of section number `number`, called `name`.
    pub fn mark(&mut self, name: &'static str, number: u64) {
        self.history.tick();
        let tag = Tag { operator: name, ..Tag::default() };
        self.history.record_block(Action::Mark, number, (0, 0), Stream::default(), tag);
        if let Some(recording) = &mut self.recording {
            recording.marked(name, number);
        }
    }

    /// Starts a digest of all later events except marks, whether or not a history is kept.
    pub fn start_digest(&mut self) {
        self.history.start_digest();
    }

    /// Returns the digest of all events since it was started or last taken, and restarts it. Events with
    /// equal actions, addresses and owners give equal digests.
    pub fn take_digest(&mut self) -> u64 {
        self.history.take_digest()
    }

    /// Returns the table of module paths.
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// Returns the number of a module path, for [`Tag::module`].
    pub fn intern(&mut self, path: &str) -> Label {
        self.labels.intern(path)
    }

    /// Returns the table of module paths, for adding paths.
    pub fn labels_mut(&mut self) -> &mut Labels {
        &mut self.labels
    }

    fn trace_driver(&mut self, action: Action, address: u64, size: u64, stream: u32, tag: Tag) {
        self.history.record(action, address, size, self.streams[stream as usize], tag);
    }

    /// Returns the index of a stream in the allocator's tables, which grow for a new stream.
    #[inline]
    fn stream_index(&mut self, stream: Stream) -> u32 {
        match self.streams.iter().position(|other| *other == stream) {
            Some(index) => index as u32,
            None => self.add_stream(stream),
        }
    }

    #[cold]
    fn add_stream(&mut self, stream: Stream) -> u32 {
        self.streams.push(stream);
        let count = self.streams.len();
        self.pools.iter_mut().for_each(|pool| pool.grow_to(count));
        count as u32 - 1
    }

    /// Returns stream indices in the order of the streams' handles.
    fn streams_in_order(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.streams.len() as u32).collect();
        order.sort_unstable_by_key(|index| self.streams[*index as usize]);
        order
    }
}

impl<R: RawMemory> Drop for Allocator<R> {
    /// Returns all memory to the driver, ignoring errors.
    fn drop(&mut self) {
        self.return_everything();
    }
}
