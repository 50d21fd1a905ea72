//! A copy of all segments and blocks at one moment, with the history of events.

use super::Allocator;
use crate::block::{Block, NONE};
use crate::history::{Action, Event};
use crate::pool::PoolId;
use crate::raw::{RawMemory, Stream};
use crate::settings::Settings;
use crate::statistics::{Metric, PoolKind};
use crate::tag::{Labels, Tag};

system::names! {
    /// State of a block.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum BlockState {
        /// Allocated.
        ActiveAllocated = "active_allocated",
        /// Freed, but still in use by another stream.
        ActivePendingFree = "active_pending_free",
        /// Idle.
        Inactive = "inactive",
    }
}

/// A block of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotBlock {
    /// First address.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// Bytes requested by the current or last owner; 0 if it never had one.
    pub requested: u64,
    /// State of the block.
    pub state: BlockState,
    /// Tag of the last request.
    pub tag: Tag,
}

/// A segment of a snapshot; for an expandable segment, a contiguous mapped part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotSegment {
    /// First address.
    pub address: u64,
    /// Size in bytes.
    pub total_size: u64,
    /// Stream of the segment.
    pub stream: Stream,
    /// Kind of the segment's pool: small or large.
    pub kind: PoolKind,
    /// The pool that the segment belongs to.
    pub pool: PoolId,
    /// Whether this is part of an expandable segment.
    pub expandable: bool,
    /// The blocks that tile the segment, in address order.
    pub blocks: Vec<SnapshotBlock>,
}

impl SnapshotSegment {
    /// Returns the bytes of the blocks whose state `state` accepts.
    fn bytes(&self, state: impl Fn(BlockState) -> bool) -> u64 {
        self.blocks.iter().filter(|b| state(b.state)).map(|b| b.size).sum()
    }

    /// Returns the bytes of allocated blocks.
    #[must_use]
    pub fn allocated_size(&self) -> u64 {
        self.bytes(|state| state == BlockState::ActiveAllocated)
    }

    /// Returns the bytes of allocated blocks, and of freed blocks that wait for other streams.
    #[must_use]
    pub fn active_size(&self) -> u64 {
        self.bytes(|state| state != BlockState::Inactive)
    }

    /// Returns the bytes requested by the owners of the active blocks.
    #[must_use]
    pub fn requested_size(&self) -> u64 {
        self.blocks.iter().filter(|b| b.state != BlockState::Inactive).map(|b| b.requested).sum()
    }
}

/// All segments and blocks at one moment, with the recorded events before it.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The device's number.
    pub device: u32,
    /// The segments, in address order.
    pub segments: Vec<SnapshotSegment>,
    /// The recorded events, oldest first; empty if the history is off.
    pub events: Vec<Event>,
    /// Module paths by the numbers in tags.
    pub labels: Labels,
    /// Settings at the time of the snapshot.
    pub settings: Settings,
}

impl<R: RawMemory> Allocator<R> {
    /// Copies segments, blocks and history, and records the snapshot as an event.
    pub fn snapshot(&mut self) -> Snapshot {
        let events = self.events().to_vec();
        Snapshot { events, ..self.snapshot_of_blocks() }
    }

    /// Returns the recorded events, oldest first.
    pub fn events(&mut self) -> &[Event] {
        self.history.events()
    }

    /// Copies segments and blocks, without the events, and records the snapshot as an event.
    pub fn snapshot_of_blocks(&mut self) -> Snapshot {
        self.history.tick();
        let heads = self.blocks.iter().filter(|(_, b)| b.mapped && !self.follows_mapped(b));
        let mut segments: Vec<_> = heads.map(|(index, _)| self.snapshot_segment(index)).collect();
        segments.sort_unstable_by_key(|segment| segment.address);
        let snapshot = Snapshot {
            device: self.device,
            segments,
            events: Vec::new(),
            labels: self.labels.clone(),
            settings: self.settings.clone(),
        };
        let active = self.statistics.metric(Metric::ActiveBytes, PoolKind::All).current as u64;
        self.history.record(Action::Snapshot, 0, active, Stream::default(), Tag::default());
        snapshot
    }

    fn follows_mapped(&self, block: &Block) -> bool {
        block.prev != NONE && self.blocks[block.prev].mapped
    }

    fn snapshot_segment(&self, head: u32) -> SnapshotSegment {
        let first = &self.blocks[head];
        let pool = &self.pools[first.pool as usize];
        let mut blocks = Vec::new();
        let mut at = head;
        while at != NONE && self.blocks[at].mapped {
            let block = &self.blocks[at];
            let state = if block.allocated {
                BlockState::ActiveAllocated
            } else if block.idle() {
                BlockState::Inactive
            } else {
                BlockState::ActivePendingFree
            };
            let address = block.address;
            let size = block.size;
            let requested = block.requested;
            let tag = block.tag;
            blocks.push(SnapshotBlock { address, size, requested, state, tag });
            at = block.next;
        }
        SnapshotSegment {
            address: first.address,
            total_size: blocks.iter().map(|b| b.size).sum(),
            stream: self.streams[first.stream as usize],
            kind: pool.kind,
            pool: self.pool_id(first.pool),
            expandable: first.expandable(),
            blocks,
        }
    }
}
