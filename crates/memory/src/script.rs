//! Scripts: allocations and frees of some work, recorded once and repeated without the work. The repetition
//! gives the same counters, peaks and events.

use std::collections::HashMap;

use crate::block::BlockId;
use crate::raw::Stream;
use crate::tag::Tag;

/// The allocations, frees and marks of some work, in order. All blocks that the work allocates are freed
/// within it.
#[derive(Debug)]
pub struct Script {
    /// Digest of all blocks before the first operation.
    pub(crate) start: u64,
    pub(crate) operations: Vec<Operation>,
    /// Index of the next operation to repeat.
    pub(crate) next: usize,
    /// Blocks of the current repetition, by the number of their allocation.
    pub(crate) blocks: Vec<BlockId>,
}

impl Script {
    /// Returns whether the allocator's blocks, with this digest ([`Allocator::digest_of_blocks`]), equal the
    /// blocks at the start of the recording. If so, a repetition gets the same addresses.
    ///
    /// [`Allocator::digest_of_blocks`]: crate::Allocator::digest_of_blocks
    pub fn fits(&self, digest: u64) -> bool {
        self.next == 0 && self.start == digest
    }
}

/// Result of a recording.
#[derive(Debug)]
pub enum ScriptEnd {
    /// The work can be repeated.
    Whole(Script),
    /// The work took memory from the driver, so its repetition would get other addresses.
    Grown,
    /// The work freed earlier blocks, or left blocks allocated; or nothing was recorded.
    Unclosed,
}

/// An operation of a script.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Allocate {
        bytes: u64,
        stream: Stream,
        tag: Tag,
        address: u64,
    },
    /// Frees the block of the allocation with this number.
    Free(usize),
    Mark(&'static str, u64),
}

#[derive(Debug)]
pub(crate) struct Recording {
    start: u64,
    operations: Vec<Operation>,
    /// Numbers of the allocations whose blocks are still allocated.
    live: HashMap<BlockId, usize>,
    allocations: usize,
    /// Whether a block allocated before the recording was freed.
    frees_others: bool,
}

impl Recording {
    /// Starts a recording; `start` is the digest of all blocks.
    pub(crate) fn new(start: u64) -> Self {
        let operations = Vec::new();
        let live = HashMap::new();
        Recording { start, operations, live, allocations: 0, frees_others: false }
    }

    /// Returns the number of operations so far.
    pub(crate) fn len(&self) -> usize {
        self.operations.len()
    }

    /// Ends the recording; `end` is the digest of all blocks.
    pub(crate) fn end(self, end: u64) -> ScriptEnd {
        let Recording { start, operations, live, frees_others, .. } = self;
        match live.is_empty() && !frees_others {
            false => ScriptEnd::Unclosed,
            true if end != start => ScriptEnd::Grown,
            true => ScriptEnd::Whole(Script { start, operations, next: 0, blocks: Vec::new() }),
        }
    }

    pub(crate) fn allocated(
        &mut self,
        block: BlockId,
        address: u64,
        (bytes, stream, tag): (u64, Stream, Tag),
    ) {
        self.live.insert(block, self.allocations);
        self.allocations += 1;
        self.operations.push(Operation::Allocate { bytes, stream, tag, address });
    }

    pub(crate) fn freed(&mut self, block: BlockId) {
        match self.live.remove(&block) {
            Some(number) => self.operations.push(Operation::Free(number)),
            None => self.frees_others = true,
        }
    }

    pub(crate) fn marked(&mut self, name: &'static str, number: u64) {
        self.operations.push(Operation::Mark(name, number));
    }
}
