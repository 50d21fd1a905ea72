//! Pools: where idle blocks wait. There is a small and a large one by default, and a pair for each private
//! pool.

use crate::block::NONE;
use crate::free_list::FreeList;
use crate::hash_order::HashKey;
use crate::raw::Stream;
use crate::statistics::PoolKind;

/// The small default pool's place among the pools; the large one follows.
pub(crate) const SMALL: u32 = 0;
pub(crate) const LARGE: u32 = 1;

/// The name of a pool: `(0, 0)` for the default, anything else for a private one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub u64, pub u64);

impl std::fmt::Display for PoolId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "({}, {})", self.0, self.1)
    }
}

impl PoolId {
    /// The pools that everything uses that was not routed elsewhere.
    pub const DEFAULT: PoolId = PoolId(0, 0);
}

impl HashKey for PoolId {
    fn hash(self) -> u64 {
        if self.0 == 0 { self.1 } else { self.0 }
    }
}

impl HashKey for Stream {
    /// As for device 0, whichever the device: an order must not depend on the device's number.
    fn hash(self) -> u64 {
        (1 << 56) | (self.0 & ((1 << 48) - 1))
    }
}

/// Which requests an open private pool takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamFilter {
    /// Requests on any stream.
    All,
    /// Requests on these streams.
    Only(Vec<Stream>),
}

impl StreamFilter {
    pub(crate) fn accepts(&self, stream: Stream) -> bool {
        match self {
            StreamFilter::All => true,
            StreamFilter::Only(streams) => streams.contains(&stream),
        }
    }
}

/// Idle blocks of one kind.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) kind: PoolKind,
    /// Place among the private pools, or [`NONE`].
    pub(crate) private: u32,
    /// Blocks are handed out whole.
    pub(crate) no_split: bool,
    /// Look-ups so far, counted while garbage collection is on.
    pub(crate) lookups: u64,
    /// Idle mapped blocks, by stream index.
    pub(crate) lists: Vec<FreeList>,
    /// Unmapped blocks of expandable ranges, by stream index, in the order (placement order, address).
    pub(crate) unmapped: Vec<Vec<u32>>,
}

impl Pool {
    pub(crate) fn new(kind: PoolKind, private: u32) -> Pool {
        Pool { kind, private, no_split: false, lookups: 0, lists: Vec::new(), unmapped: Vec::new() }
    }

    pub(crate) fn is_small(&self) -> bool {
        self.kind == PoolKind::Small
    }

    pub(crate) fn is_default(&self) -> bool {
        self.private == NONE
    }

    /// Makes room for one more stream.
    pub(crate) fn grow_to(&mut self, streams: usize) {
        self.lists.resize_with(streams, FreeList::new);
        self.unmapped.resize_with(streams, Vec::new);
    }
}

/// A pair of pools that belongs to somebody. Its small pool is at `2 + 2·place` among the pools, its large
/// one behind it.
#[derive(Debug)]
pub(crate) struct PrivatePool {
    pub(crate) id: PoolId,
    pub(crate) users: u32,
    /// PyTorch's count of memory taken from the driver for this pool: up by one for a segment, or for a
    /// request that mapped pages in however many steps; down by one for each segment freed and each stretch
    /// unmapped.
    pub(crate) driver_allocations: u64,
    /// The record may be used for another pool.
    pub(crate) vacant: bool,
}
