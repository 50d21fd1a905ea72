//! Blocks, and the slab that stores them. Neighbours are linked by index, so merging needs no hash table or
//! pointers.

use crate::raw::Stream;
use crate::tag::Tag;

/// Index that stands for no block, range or pool.
pub(crate) const NONE: u32 = u32::MAX;

/// Identifier of an allocated block. It becomes stale once the block is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl BlockId {
    /// The block of a zero-byte request; freeing it does nothing.
    pub const NULL: BlockId = BlockId { index: NONE, generation: 0 };
}

#[derive(Clone, Debug, Default)]
pub(crate) struct StreamUses {
    pub(crate) streams: crate::hash_order::Table<Stream, ()>,
    /// Streams that used the block while a private pool was open.
    pub(crate) while_open: Vec<Stream>,
}

/// A contiguous part of a segment. The blocks of a segment are linked in address order and tile it.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// Bytes requested by the last owner; stale while the block is idle.
    pub(crate) requested: u64,
    /// Placement order of the block's segment.
    pub(crate) order: u64,
    /// Lookup counter of the pool when the block became idle.
    pub(crate) gc_base: u64,
    pub(crate) prev: u32,
    pub(crate) next: u32,
    pub(crate) pool: u32,
    /// Index into the allocator's table of streams.
    pub(crate) stream: u32,
    /// Index of the expandable range that holds the block, or [`NONE`].
    pub(crate) range: u32,
    /// Number of events on other streams that a freed block still waits for.
    pub(crate) events: u32,
    pub(crate) generation: u32,
    pub(crate) allocated: bool,
    pub(crate) mapped: bool,
    pub(crate) live: bool,
    pub(crate) tag: Tag,
    pub(crate) uses: Option<Box<StreamUses>>,
}

impl Block {
    pub(crate) fn new(address: u64, size: u64, order: u64, pool: u32, stream: u32) -> Block {
        Block {
            address,
            size,
            requested: 0,
            order,
            gc_base: 0,
            prev: NONE,
            next: NONE,
            pool,
            stream,
            range: NONE,
            events: 0,
            generation: 0,
            allocated: false,
            mapped: true,
            live: true,
            tag: Tag::default(),
            uses: None,
        }
    }

    /// Returns whether the block may be merged or assigned to a request.
    #[inline]
    pub(crate) fn idle(&self) -> bool {
        !self.allocated && self.events == 0 && self.uses.is_none()
    }

    /// Returns whether the block shares its segment with other blocks.
    #[inline]
    pub(crate) fn split(&self) -> bool {
        self.prev != NONE || self.next != NONE
    }

    #[inline]
    pub(crate) fn expandable(&self) -> bool {
        self.range != NONE
    }
}

/// All blocks by index. Indices of removed blocks are reused.
#[derive(Debug, Default)]
pub(crate) struct Slab {
    blocks: Vec<Block>,
    vacant: Vec<u32>,
}

impl std::ops::Index<u32> for Slab {
    type Output = Block;
    #[inline]
    fn index(&self, index: u32) -> &Block {
        &self.blocks[index as usize]
    }
}

impl std::ops::IndexMut<u32> for Slab {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut Block {
        &mut self.blocks[index as usize]
    }
}

impl Slab {
    #[inline]
    pub(crate) fn insert(&mut self, block: Block) -> u32 {
        if let Some(index) = self.vacant.pop() {
            let slot = &mut self.blocks[index as usize];
            let generation = slot.generation;
            *slot = block;
            slot.generation = generation;
            return index;
        }
        // 2³² blocks of at least 512 bytes cover over 2 TiB; the slab's own memory runs out first.
        let index = self.blocks.len() as u32;
        self.blocks.push(block);
        index
    }

    #[inline]
    pub(crate) fn remove(&mut self, index: u32) {
        let block = &mut self.blocks[index as usize];
        block.live = false;
        block.generation = block.generation.wrapping_add(1);
        block.uses = None;
        self.vacant.push(index);
    }

    /// Returns the allocated block with identifier `id`; `None` once it is freed.
    #[inline]
    pub(crate) fn allocated(&self, id: BlockId) -> Option<&Block> {
        self.blocks
            .get(id.index as usize)
            .filter(|block| block.live && block.allocated && block.generation == id.generation)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Block)> {
        self.blocks.iter().enumerate().filter(|(_, b)| b.live).map(|(index, block)| (index as u32, block))
    }

    /// Links a new block before `at`.
    #[inline]
    pub(crate) fn link_before(&mut self, new: u32, at: u32) {
        let prev = self[at].prev;
        self[new].prev = prev;
        self[new].next = at;
        self[at].prev = new;
        if prev != NONE {
            self[prev].next = new;
        }
    }

    /// Links a new block after `at`.
    pub(crate) fn link_after(&mut self, new: u32, at: u32) {
        let next = self[at].next;
        self[new].next = next;
        self[new].prev = at;
        self[at].next = new;
        if next != NONE {
            self[next].prev = new;
        }
    }

    /// Extends `into` over its neighbour `from`, and removes `from`.
    #[inline]
    pub(crate) fn absorb(&mut self, into: u32, from: u32) {
        let (address, size, prev, next) = {
            let from = &self[from];
            (from.address, from.size, from.prev, from.next)
        };
        if self[into].prev == from {
            self[into].address = address;
            self[into].prev = prev;
            if prev != NONE {
                self[prev].next = into;
            }
        } else {
            self[into].next = next;
            if next != NONE {
                self[next].prev = into;
            }
        }
        self[into].size += size;
        self.remove(from);
    }
}
