//! Scripts: allocations and frees of some work, recorded once and made again without the work, so that every
//! counter, peak and event is that of the work itself.

use std::collections::HashMap;

use super::Allocator;
use crate::block::{Block, BlockId};
use crate::error::AllocationError;
use crate::raw::{RawMemory, Stream};
use crate::tag::Tag;

/// The allocations, frees and marks of some work in order. The work ends with the blocks with which it began.
#[derive(Debug)]
pub struct Script {
    /// Digest of all blocks before the first operation.
    start: u64,
    operations: Vec<Operation>,
    /// The next operation to repeat, and the blocks of the repetition by the number of their allocation.
    next: usize,
    blocks: Vec<BlockId>,
}

/// The end of a recording.
#[derive(Debug)]
pub enum ScriptEnd {
    /// The work can be repeated.
    Whole(Script),
    /// The work took memory from the driver, so its repetition would get other addresses.
    Grown,
    /// The work freed blocks that it had not allocated, or left some allocated; or nothing was recorded.
    Unclosed,
}

/// An operation of a script.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Allocate {
        bytes: u64,
        stream: Stream,
        tag: Tag,
        address: u64,
    },
    /// A free of the block of the allocation with this number.
    Free(usize),
    Mark(&'static str, u64),
}

/// A script being recorded.
#[derive(Debug)]
pub(super) struct Recording {
    start: u64,
    operations: Vec<Operation>,
    /// Numbers of the allocations whose blocks are allocated.
    live: HashMap<BlockId, usize>,
    allocations: usize,
    /// Whether a block from before the recording was freed.
    frees_others: bool,
}

impl Recording {
    pub(super) fn allocated(
        &mut self,
        block: BlockId,
        address: u64,
        (bytes, stream, tag): (u64, Stream, Tag),
    ) {
        self.live.insert(block, self.allocations);
        self.allocations += 1;
        self.operations.push(Operation::Allocate { bytes, stream, tag, address });
    }

    pub(super) fn freed(&mut self, block: BlockId) {
        match self.live.remove(&block) {
            Some(number) => self.operations.push(Operation::Free(number)),
            None => self.frees_others = true,
        }
    }

    pub(super) fn marked(&mut self, name: &'static str, number: u64) {
        self.operations.push(Operation::Mark(name, number));
    }
}

impl<R: RawMemory> Allocator<R> {
    /// Records all operations from now on for a [`Script`], and discards a recording that has not ended.
    pub fn begin_script(&mut self) {
        let start = self.digest_of_blocks();
        self.recording = Some(Box::new(Recording {
            start,
            operations: Vec::new(),
            live: HashMap::new(),
            allocations: 0,
            frees_others: false,
        }));
    }

    /// Number of operations recorded so far.
    pub fn script_length(&self) -> usize {
        self.recording.as_ref().map_or(0, |recording| recording.operations.len())
    }

    /// Ends the recording.
    pub fn end_script(&mut self) -> ScriptEnd {
        let Some(recording) = self.recording.take() else { return ScriptEnd::Unclosed };
        let Recording { start, operations, live, frees_others, .. } = *recording;
        match live.is_empty() && !frees_others {
            false => ScriptEnd::Unclosed,
            true if self.digest_of_blocks() != start => ScriptEnd::Grown,
            true => ScriptEnd::Whole(Script { start, operations, next: 0, blocks: Vec::new() }),
        }
    }

    /// Returns whether the blocks are those with which the work of `script` began, so that its repetition
    /// gets the same addresses.
    pub fn fits(&self, script: &Script) -> bool {
        script.next == 0 && self.digest_of_blocks() == script.start
    }

    /// Repeats the operations of `script` up to its first `end`, from where the last call ended, with `step`
    /// in their tags; without `end` all that are left, after which it begins again.
    ///
    /// # Errors
    /// Those of an allocation; [`AllocationError::Moved`] if it has another address than in the recording.
    pub fn repeat(
        &mut self,
        script: &mut Script,
        end: Option<usize>,
        step: u32,
    ) -> Result<(), AllocationError> {
        let last = end.unwrap_or(usize::MAX);
        while let Some(operation) = script.operations.get(script.next).filter(|_| script.next < last) {
            match *operation {
                Operation::Allocate { bytes, stream, tag, address } => {
                    let taken = self.allocate(bytes, stream, Tag { step, ..tag })?;
                    script.blocks.push(taken.block);
                    if taken.address != address {
                        return Err(AllocationError::Moved { recorded: address, address: taken.address });
                    }
                }
                Operation::Free(number) => {
                    script.blocks.get(number).map_or(Ok(()), |block| self.free(*block))?;
                }
                Operation::Mark(name, number) => self.mark(name, number),
            }
            script.next += 1;
        }
        if end.is_none() {
            script.next = 0;
            script.blocks.clear();
        }
        Ok(())
    }

    /// Digest of the blocks' addresses, sizes, pools and states, whatever the order of the slab.
    fn digest_of_blocks(&self) -> u64 {
        let mixed = |block: &Block| {
            let state =
                u64::from(block.allocated) | u64::from(block.mapped) << 1 | u64::from(block.events) << 2;
            let owner = u64::from(block.pool) << 32 | u64::from(block.stream);
            [block.address, block.size, state, owner].into_iter().fold(0x9e37_79b9_7f4a_7c15, mix)
        };
        self.blocks.iter().fold(0, |sum: u64, (_, block)| sum.wrapping_add(mixed(block)))
    }
}

/// Mixes a word into a digest: a step of `SplitMix64`.
fn mix(digest: u64, word: u64) -> u64 {
    let mut mixed = (digest ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
