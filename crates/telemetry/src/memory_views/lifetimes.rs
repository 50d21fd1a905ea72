//! Lifetimes of blocks and segments, from an allocator's history. Times are indices of events.

use std::collections::HashMap;

use memory::{Action, BlockState, Category, Snapshot, Tag};

/// A block, with the indices of the events that allocated and freed it.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockLife {
    pub(super) address: u64,
    /// Requested bytes.
    pub(super) size: u64,
    pub(super) begin: usize,
    pub(super) end: usize,
    pub(super) tag: Tag,
}

/// Memory taken from the driver, with the indices of the events that took and returned it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentLife {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) begin: usize,
    pub(super) end: usize,
    /// Whether the memory is part of an expandable segment.
    pub(super) mapped: bool,
}

/// Bytes after one event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Requested bytes of live blocks, by category.
    pub(super) by_category: [u64; Category::ALL.len()],
    /// Bytes held from the driver.
    pub(super) reserved: u64,
}

impl Moment {
    /// Bytes in use over all categories.
    pub(super) fn used(&self) -> u64 {
        self.by_category.iter().sum()
    }
}

/// Lifetimes of all blocks and segments in a history.
#[derive(Debug, Default)]
pub(super) struct Lifetimes {
    pub(super) blocks: Vec<BlockLife>,
    pub(super) segments: Vec<SegmentLife>,
    /// Number of events.
    pub(super) end: usize,
    /// Each step with the index of its first event.
    pub(super) steps: Vec<(u32, usize)>,
}

impl Lifetimes {
    /// Reads a snapshot's history. Blocks and segments older than the history begin at event 0.
    pub(super) fn from_snapshot(snapshot: &Snapshot) -> Lifetimes {
        let mut lives = Lifetimes { end: snapshot.events.len().max(1), ..Lifetimes::default() };
        lives.read_blocks(snapshot);
        lives.read_segments(snapshot);
        let mut latest = 0;
        for (now, event) in snapshot.events.iter().enumerate() {
            if event.action == Action::Alloc && event.tag.step > latest {
                latest = event.tag.step;
                lives.steps.push((latest, now));
            }
        }
        lives
    }

    fn read_blocks(&mut self, snapshot: &Snapshot) {
        let mut open: HashMap<u64, BlockLife> = HashMap::new();
        for (now, event) in snapshot.events.iter().enumerate() {
            let address = event.address;
            let size = event.size;
            let tag = event.tag;
            match event.action {
                Action::Alloc => {
                    open.insert(address, BlockLife { address, size, begin: now, end: self.end, tag });
                }
                Action::FreeCompleted => {
                    let before = BlockLife { address, size, begin: 0, end: now, tag };
                    self.blocks.push(BlockLife { end: now, ..open.remove(&address).unwrap_or(before) });
                }
                _ => {}
            }
        }
        for block in
            snapshot.segments.iter().flat_map(|s| &s.blocks).filter(|b| b.state != BlockState::Inactive)
        {
            open.entry(block.address).or_insert(BlockLife {
                address: block.address,
                size: block.requested,
                begin: 0,
                end: self.end,
                tag: block.tag,
            });
        }
        self.blocks.extend(open.into_values());
        self.blocks.sort_unstable_by_key(|b| (b.begin, b.address));
    }

    fn read_segments(&mut self, snapshot: &Snapshot) {
        let mut open: Vec<SegmentLife> = Vec::new();
        for (now, event) in snapshot.events.iter().enumerate() {
            let mapped = matches!(event.action, Action::SegmentMap | Action::SegmentUnmap);
            let piece =
                SegmentLife { address: event.address, size: event.size, begin: now, end: self.end, mapped };
            match event.action {
                Action::SegmentAlloc | Action::SegmentMap => open.push(piece),
                Action::SegmentFree | Action::SegmentUnmap => self.close(&mut open, piece, now),
                _ => {}
            }
        }
        for segment in &snapshot.segments {
            let whole = SegmentLife {
                address: segment.address,
                size: segment.total_size,
                begin: 0,
                end: self.end,
                mapped: segment.expandable,
            };
            let pieces: Vec<SegmentLife> =
                open.iter().filter(|p| overlap(p, &whole).is_some()).copied().collect();
            open.extend(without(whole, &pieces));
        }
        self.segments.extend(open);
        self.segments.sort_unstable_by_key(|s| (s.begin, s.address));
    }

    /// Ends the lifetimes of segments inside `gone` at event `now`. Segments outside stay open; parts of
    /// `gone` without a recorded start begin at event 0.
    fn close(&mut self, open: &mut Vec<SegmentLife>, gone: SegmentLife, now: usize) {
        let (hit, outside): (Vec<_>, Vec<_>) =
            open.drain(..).partition(|piece| overlap(piece, &gone).is_some());
        *open = outside;
        for piece in &hit {
            if let Some((address, size)) = overlap(piece, &gone) {
                self.segments.push(SegmentLife { address, size, end: now, ..*piece });
            }
            open.extend(without(*piece, &[gone]));
        }
        for rest in without(SegmentLife { begin: 0, end: now, ..gone }, &hit) {
            self.segments.push(rest);
        }
    }

    /// Returns the bytes in use and reserved after each event.
    pub(super) fn curves(&self) -> Vec<Moment> {
        let mut changes = vec![([0i64; Category::ALL.len()], 0i64); self.end + 2];
        for block in &self.blocks {
            changes[block.begin].0[block.tag.category.index()] += block.size as i64;
            changes[block.end].0[block.tag.category.index()] -= block.size as i64;
        }
        for segment in &self.segments {
            changes[segment.begin].1 += segment.size as i64;
            changes[segment.end].1 -= segment.size as i64;
        }
        let mut now = ([0i64; Category::ALL.len()], 0i64);
        let mut curves = Vec::with_capacity(self.end);
        for (used, held) in changes.into_iter().take(self.end) {
            now.0.iter_mut().zip(used).for_each(|(sum, change)| *sum += change);
            now.1 += held;
            curves.push(Moment { by_category: now.0.map(|bytes| bytes as u64), reserved: now.1 as u64 });
        }
        curves
    }
}

/// Returns the address and size of the overlap of two segments.
fn overlap(a: &SegmentLife, b: &SegmentLife) -> Option<(u64, u64)> {
    let start = a.address.max(b.address);
    let end = (a.address + a.size).min(b.address + b.size);
    (start < end).then(|| (start, end - start))
}

fn without(piece: SegmentLife, others: &[SegmentLife]) -> Vec<SegmentLife> {
    let mut others: Vec<(u64, u64)> = others.iter().map(|o| (o.address, o.address + o.size)).collect();
    others.sort_unstable();
    let mut start = piece.address;
    let end = piece.address + piece.size;
    let mut left = Vec::new();
    for (from, to) in others {
        if start < from.min(end) {
            left.push(SegmentLife { address: start, size: from.min(end) - start, ..piece });
        }
        start = start.max(to);
    }
    if start < end {
        left.push(SegmentLife { address: start, size: end - start, ..piece });
    }
    left
}

#[cfg(test)]
mod tests {
    use memory::{Allocator, Category, Settings, Stream, Tag, drivers::Counting};

    use super::*;

    #[test]
    fn curves_end_at_the_counters() {
        for (settings, events) in [("", 10_000), ("", 40), ("expandable_segments:True", 10_000)] {
            let mut allocator =
                Allocator::new(Counting::new(1 << 32), Settings::parse(settings).unwrap()).unwrap();
            let parameter =
                allocator.allocate(7 << 20, Stream(0), Tag::with_category(Category::Parameter)).unwrap();
            allocator.record_history(events);
            let mut alive = Vec::new();
            for round in 0..40u64 {
                let bytes = 700 + (round * 7_919 * 977) % (40 << 20);
                alive.push(
                    allocator
                        .allocate(bytes, Stream(round % 2), Tag::with_category(Category::Activation))
                        .unwrap(),
                );
                if round % 3 == 0 {
                    allocator.free(alive.swap_remove(alive.len() / 2).block).unwrap();
                }
                if round % 10 == 9 {
                    allocator.empty_cache().unwrap();
                }
            }
            let curves = Lifetimes::from_snapshot(&allocator.snapshot()).curves();
            let last = curves.last().copied().unwrap();
            assert_eq!(last.reserved, allocator.statistics().reserved(), "{settings}");
            let requested = allocator.statistics().get("requested_bytes.all.current").unwrap() as u64;
            assert_eq!(last.used(), requested, "{settings}");
            assert_eq!(last.by_category[Category::Parameter.index()], 7 << 20);
            allocator.free(parameter.block).unwrap();
        }
    }
}
