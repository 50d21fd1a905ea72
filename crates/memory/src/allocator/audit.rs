//! Audit: the allocator's counters checked against its blocks.

use std::collections::BTreeMap;

use super::Allocator;
use crate::block::{Block, NONE};
use crate::raw::RawMemory;
use crate::statistics::{Metric, PoolKind};
use crate::tag::CategoryBytes;

/// Result of a check: `Err` describes the first violation.
type Finding = Result<(), String>;

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Finding {
    if holds { Ok(()) } else { Err(what()) }
}

/// Function of a block whose sum over a kind of pools must equal a counter.
type Recount = fn(&Block) -> u64;

impl<R: RawMemory> Allocator<R> {
    /// Recounts everything: blocks tile their segments and do not overlap, idle blocks are merged and in
    /// their lists, each current counter equals the sum over the blocks, and no peak is below it.
    ///
    /// Takes time proportional to the number of blocks; meant for tests and debugging.
    ///
    /// # Errors
    /// A description of the first violation.
    pub fn audit(&self) -> Result<(), String> {
        self.audit_links()?;
        self.audit_overlap()?;
        self.audit_lists()?;
        self.audit_counters()?;
        self.audit_categories()
    }

    fn audit_links(&self) -> Finding {
        for (index, block) in self.blocks.iter() {
            let here = || format!("block {index} at {:#x}", block.address);
            ensure(block.size > 0 && block.size % 512 == 0, || {
                format!("{} has {} bytes", here(), block.size)
            })?;
            ensure(block.mapped || (block.idle() && block.expandable()), || {
                format!("{} is in use and not mapped", here())
            })?;
            if block.next == NONE {
                continue;
            }
            let next = &self.blocks[block.next];
            ensure(next.live && next.prev == index, || {
                format!("{} is not linked back by its neighbour", here())
            })?;
            ensure(block.address + block.size == next.address, || {
                format!("{} does not end where its next block starts", here())
            })?;
            let one_segment = |b: &Block| (b.pool, b.stream, b.range, b.order);
            ensure(one_segment(block) == one_segment(next), || format!("{} is in another segment", here()))?;
            let unmerged = block.idle() && next.idle() && block.mapped == next.mapped;
            ensure(!unmerged, || format!("{} and its next block are idle but not merged", here()))?;
        }
        Ok(())
    }

    fn audit_overlap(&self) -> Finding {
        let blocks: BTreeMap<u64, u64> = self.blocks.iter().map(|(_, b)| (b.address, b.size)).collect();
        ensure(blocks.len() == self.blocks.iter().count(), || "two blocks have the same address".to_owned())?;
        for ((address, size), next) in blocks.iter().zip(blocks.keys().skip(1)) {
            ensure(address + size <= *next, || format!("blocks at {address:#x} and {next:#x} overlap"))?;
        }
        Ok(())
    }

    fn audit_lists(&self) -> Finding {
        let mut idle = 0;
        for (position, pool) in self.pools.iter().enumerate() {
            for (stream, (list, unmapped)) in pool.lists.iter().zip(&pool.unmapped).enumerate() {
                let mapped = list.iter().map(|entry| (entry.block, true));
                for (index, mapped) in mapped.chain(unmapped.iter().map(|index| (*index, false))) {
                    let block = &self.blocks[index];
                    let belongs = block.live
                        && block.idle()
                        && block.mapped == mapped
                        && (block.pool as usize, block.stream as usize) == (position, stream);
                    ensure(belongs, || format!("block {index} is in another pool's list"))?;
                    idle += 1;
                }
            }
        }
        let expected = self.blocks.iter().filter(|(_, b)| b.idle()).count();
        ensure(idle == expected, || format!("{idle} blocks in lists, {expected} are idle"))
    }

    fn audit_counters(&self) -> Finding {
        let recounts: [(Metric, Recount); 9] = [
            (Metric::Allocation, |b| u64::from(b.allocated)),
            (Metric::AllocatedBytes, |b| if b.allocated { b.size } else { 0 }),
            (Metric::Active, |b| u64::from(!b.idle())),
            (Metric::ActiveBytes, |b| if b.idle() { 0 } else { b.size }),
            (Metric::RequestedBytes, |b| if b.idle() { 0 } else { b.requested }),
            (Metric::Segment, |b| u64::from(!b.expandable() && b.prev == NONE)),
            (Metric::ReservedBytes, |b| if b.mapped { b.size } else { 0 }),
            (Metric::InactiveSplit, |b| u64::from(b.idle() && b.split() && !b.expandable())),
            (
                Metric::InactiveSplitBytes,
                |b| if b.idle() && b.split() && !b.expandable() { b.size } else { 0 },
            ),
        ];
        for (metric, recount) in recounts {
            for kind in PoolKind::ALL {
                let counted = self.statistics.metric(metric, kind);
                let of_kind = |b: &Block| kind == PoolKind::All || self.pools[b.pool as usize].kind == kind;
                let actual: u64 =
                    self.blocks.iter().filter(|(_, b)| of_kind(b)).map(|(_, b)| recount(b)).sum();
                ensure(counted.current == actual as i64, || {
                    format!("{}.{} is {}, recounted {actual}", metric.name(), kind.name(), counted.current)
                })?;
                ensure(counted.peak >= counted.current, || {
                    format!("{}.{} has a peak of {} below {actual}", metric.name(), kind.name(), counted.peak)
                })?;
            }
        }
        let reserved = self.statistics.reserved();
        ensure(self.held == reserved, || format!("{} bytes held, {reserved} reserved", self.held))
    }

    fn audit_categories(&self) -> Finding {
        let mut actual = CategoryBytes::default();
        for (_, block) in self.blocks.iter().filter(|(_, block)| block.allocated) {
            actual.0[block.tag.category.index()] += block.size;
        }
        ensure(actual == self.categories, || {
            format!("categories {:?}, recounted {actual:?}", self.categories)
        })?;
        let peak = self.statistics.peak_allocated();
        let at_peak = self.peak_category_bytes().total();
        ensure(peak == at_peak, || format!("categories add up to {at_peak} at the peak of {peak}"))
    }
}
