//! Recording and repeating scripts of allocations and frees.

use super::Allocator;
use crate::block::Block;
use crate::error::AllocationError;
use crate::raw::RawMemory;
use crate::script::{Operation, Recording, Script, ScriptEnd};
use crate::tag::Tag;

impl<R: RawMemory> Allocator<R> {
    /// Starts to record all operations into a [`Script`]. Discards a recording in progress.
    pub fn begin_script(&mut self) {
        self.recording = Some(Box::new(Recording::new(self.digest_of_blocks())));
    }

    /// Returns the number of operations recorded so far.
    pub fn script_length(&self) -> usize {
        self.recording.as_ref().map_or(0, |recording| recording.len())
    }

    /// Ends the recording.
    pub fn end_script(&mut self) -> ScriptEnd {
        let digest = self.digest_of_blocks();
        self.recording.take().map_or(ScriptEnd::Unclosed, |recording| recording.end(digest))
    }

    /// Repeats the operations of `script`, continuing after the last call, up to operation number `end`.
    /// Without `end` it repeats all remaining operations, and the next call starts over. Tags get the step
    /// `step`.
    ///
    /// # Errors
    /// Errors of an allocation; [`AllocationError::Moved`] if it has another address than in the recording.
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

    /// Returns a digest of addresses, sizes, pools and states of all blocks. With equal digests, equal
    /// requests get equal addresses, unless blocks are released by their age.
    pub fn digest_of_blocks(&self) -> u64 {
        let mixed = |block: &Block| {
            let state =
                u64::from(block.allocated) | u64::from(block.mapped) << 1 | u64::from(block.events) << 2;
            let owner = u64::from(block.pool) << 32 | u64::from(block.stream);
            [block.address, block.size, state, owner].into_iter().fold(0x9e37_79b9_7f4a_7c15, mix)
        };
        self.blocks.iter().fold(0, |sum: u64, (_, block)| sum.wrapping_add(mixed(block)))
    }
}

/// Mixes a word into a digest, by a step of `SplitMix64`.
fn mix(digest: u64, word: u64) -> u64 {
    let mut mixed = (digest ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
