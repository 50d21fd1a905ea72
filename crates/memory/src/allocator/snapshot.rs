//! A copy of all segments and blocks at one moment, with the history of events.

use super::Allocator;
use crate::block::{Block, NONE};
use crate::history::{Action, Event};
use crate::pool::PoolId;
use crate::raw::{RawMemory, Stream};
use crate::settings::Settings;
use crate::statistics::{Metric, PoolKind};
use crate::tag::{Labels, Tag};

/// State of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockState {
    /// Allocated.
    ActiveAllocated,
    /// Freed, and waiting for another stream.
    ActivePendingFree,
    /// Free to be handed out.
    Inactive,
}

impl BlockState {
    /// The name in PyTorch's snapshots.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            BlockState::ActiveAllocated => "active_allocated",
            BlockState::ActivePendingFree => "active_pending_free",
            BlockState::Inactive => "inactive",
        }
    }
}

/// A block of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotBlock {
    /// First address.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// Bytes asked for, by the last owner where it is idle, 0 where there was none.
    pub requested: u64,
    /// State of the block.
    pub state: BlockState,
    /// Tag of the last request.
    pub tag: Tag,
}

/// A segment of a snapshot: for expandable ones, a contiguous mapped part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotSegment {
    /// First address.
    pub address: u64,
    /// Size in bytes.
    pub total_size: u64,
    /// The stream it belongs to.
    pub stream: Stream,
    /// Small or large.
    pub kind: PoolKind,
    /// The pool it belongs to.
    pub pool: PoolId,
    /// Part of an expandable segment.
    pub expandable: bool,
    /// In address order, tiling it.
    pub blocks: Vec<SnapshotBlock>,
}

impl SnapshotSegment {
    /// Bytes of blocks that `state` accepts.
    fn bytes(&self, state: impl Fn(BlockState) -> bool) -> u64 {
        self.blocks.iter().filter(|b| state(b.state)).map(|b| b.size).sum()
    }

    /// Bytes of allocated blocks.
    #[must_use]
    pub fn allocated_size(&self) -> u64 {
        self.bytes(|state| state == BlockState::ActiveAllocated)
    }

    /// Bytes of allocated and waiting blocks.
    #[must_use]
    pub fn active_size(&self) -> u64 {
        self.bytes(|state| state != BlockState::Inactive)
    }

    /// Bytes asked for by the owners of the active blocks.
    #[must_use]
    pub fn requested_size(&self) -> u64 {
        self.blocks.iter().filter(|b| b.state != BlockState::Inactive).map(|b| b.requested).sum()
    }
}

/// All segments and blocks at one moment, and how it came to that.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The device's number.
    pub device: u32,
    /// In address order.
    pub segments: Vec<SnapshotSegment>,
    /// Oldest first; empty where the history is off.
    pub events: Vec<Event>,
    /// Names of the tags' modules.
    pub labels: Labels,
    /// The settings in force.
    pub settings: Settings,
}

impl<R: RawMemory> Allocator<R> {
    /// Copies segments, blocks and history. The history remembers that it was asked.
    pub fn snapshot(&mut self) -> Snapshot {
        self.history.tick();
        let heads = self.blocks.iter().filter(|(_, b)| b.mapped && !self.follows_mapped(b));
        let mut segments: Vec<_> = heads.map(|(index, _)| self.snapshot_segment(index)).collect();
        segments.sort_unstable_by_key(|segment| segment.address);
        let snapshot = Snapshot {
            device: self.device,
            segments,
            events: self.history.events(),
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
            let (address, size, requested, tag) = (block.address, block.size, block.requested, block.tag);
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
