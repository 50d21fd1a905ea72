//! Pools of idle blocks. There is a small and a large default pool, and a small and a large pool for each
//! private pool.

use crate::block::NONE;
use crate::free_list::FreeList;
use crate::hash_order::HashKey;
use crate::raw::Stream;
use crate::statistics::PoolKind;

/// Index of the small default pool; the large one follows.
pub(crate) const SMALL: u32 = 0;
pub(crate) const LARGE: u32 = 1;

/// Identifier of a pool: `(0, 0)` for the default, anything else for a private one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub u64, pub u64);

impl std::fmt::Display for PoolId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "({}, {})", self.0, self.1)
    }
}

impl PoolId {
    /// The default pools, for every request that is not routed to a private pool.
    pub const DEFAULT: PoolId = PoolId(0, 0);
}

impl HashKey for PoolId {
    fn hash(self) -> u64 {
        if self.0 == 0 { self.1 } else { self.0 }
    }
}

impl HashKey for Stream {
    /// Returns PyTorch's hash for device 0. It is used on every device, because the order must not depend on
    /// the device's number.
    fn hash(self) -> u64 {
        (1 << 56) | (self.0 & ((1 << 48) - 1))
    }
}

/// Streams whose requests an open private pool serves.
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

/// Idle blocks of one pool kind, small or large.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) kind: PoolKind,
    /// Index among the private pools, or [`NONE`].
    pub(crate) private: u32,
    /// Whether splitting of blocks is disabled.
    pub(crate) no_split: bool,
    /// Number of lookups so far, counted while garbage collection is on.
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

    /// Makes room for `streams` streams.
    pub(crate) fn grow_to(&mut self, streams: usize) {
        self.lists.resize_with(streams, FreeList::new);
        self.unmapped.resize_with(streams, Vec::new);
    }
}

/// A small and a large pool for one private use. Their indices are `2 + 2·position` and `3 + 2·position`.
#[derive(Debug)]
pub(crate) struct PrivatePool {
    pub(crate) id: PoolId,
    pub(crate) users: u32,
    /// PyTorch's count of driver allocations for this pool. It rises by one per segment, or per request that
    /// mapped pages in any number of steps. It falls by one per segment freed and per contiguous unmapping.
    pub(crate) driver_allocations: u64,
    /// Whether the record is unused and may serve another pool.
    pub(crate) vacant: bool,
}
