//! Garbage collection: above a fraction of the limit, the oldest idle segments are returned to the driver.

use super::Allocator;
use crate::error::AllocationError;
use crate::pool::LARGE;
use crate::raw::RawMemory;

impl<R: RawMemory> Allocator<R> {
    /// Releases whole idle segments of the large default pool until usage is below the threshold or none is
    /// left. Segments older than average go first; age is counted in lookups.
    pub(super) fn collect_garbage(&mut self) -> Result<(), AllocationError> {
        let Some(limit) = self.limit else { return Ok(()) };
        let threshold = (self.settings.garbage_collection_threshold * limit as f64) as u64;
        if self.held <= threshold {
            return Ok(());
        }
        let target = self.held - threshold;
        let lookups = self.pools[LARGE as usize].lookups;
        let mut idle = Vec::new();
        for stream in self.streams_in_order() {
            let list = &self.pools[LARGE as usize].lists[stream as usize];
            idle.extend(list.iter().map(|e| e.block).filter(|index| !self.blocks[*index].split()));
        }
        let age = |block: &crate::block::Block| lookups - block.gc_base;
        let mut ages: u64 = idle.iter().map(|index| age(&self.blocks[*index])).sum();
        let mut count = idle.len() as u64;
        idle.retain(|index| !self.blocks[*index].expandable());
        let mut reclaimed = 0;
        let mut freed_any = true;
        while reclaimed < target && freed_any && count > 0 {
            let oldest = ages as f64 / count as f64;
            freed_any = false;
            let mut younger = Vec::with_capacity(idle.len());
            for index in std::mem::take(&mut idle) {
                let block = &self.blocks[index];
                let block_age = age(block);
                let size = block.size;
                if (block_age as f64) < oldest {
                    younger.push(index);
                    continue;
                }
                self.release_segment(index)?;
                freed_any = true;
                reclaimed += size;
                ages -= block_age;
                count -= 1;
            }
            idle = younger;
        }
        Ok(())
    }
}
