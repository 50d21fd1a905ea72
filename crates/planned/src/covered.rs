//! Tracks the pages of host memory that blocks have used.

use std::collections::BTreeMap;

use device::host::PAGE;
use memory::{Action, Event};

/// Pages of an allocator's segments that blocks have used since the pages were mapped. Other pages of a
/// segment are reserved but take no host memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct CoveredPages {
    /// End of each disjoint range, by its start.
    ranges: BTreeMap<u64, u64>,
    bytes: u64,
    peak: u64,
}

impl CoveredPages {
    /// Adds the blocks that `events` allocate, and removes pages that they unmap.
    pub(crate) fn follow(&mut self, events: &[Event]) {
        for Event { action, address, size, .. } in events.iter().copied() {
            match action {
                Action::Alloc => {
                    self.cover(address - address % PAGE, (address + size).next_multiple_of(PAGE))
                }
                Action::SegmentFree | Action::SegmentUnmap => self.uncover(address, address + size),
                _ => {}
            }
        }
        self.peak = self.peak.max(self.bytes);
    }

    /// Returns the maximum bytes of pages in use at once.
    pub(crate) fn peak(&self) -> u64 {
        self.peak
    }

    fn cover(&mut self, start: u64, end: u64) {
        let before = self.ranges.range(..=start).next_back().map(|(start, end)| (*start, *end));
        if before.is_some_and(|(_, old_end)| end <= old_end) {
            return;
        }
        let start = before.filter(|(_, old_end)| start <= *old_end).map_or(start, |(first, _)| first);
        let end = self.remove(start, end).map_or(end, |last| last.max(end));
        self.ranges.insert(start, end);
        self.bytes += end - start;
        self.peak = self.peak.max(self.bytes);
    }

    fn uncover(&mut self, start: u64, end: u64) {
        // Extends the new range by overlapping ranges at both ends.
        let before = self.ranges.range(..start).next_back().map(|(start, end)| (*start, *end));
        if let Some((first, old_end)) = before.filter(|(_, old_end)| start < *old_end) {
            self.ranges.insert(first, start);
            self.bytes -= old_end - start;
            self.keep(end, old_end);
        }
        if let Some(last) = self.remove(start, end) {
            self.keep(end, last);
        }
    }

    /// Removes the ranges that begin between `start` and `end`, inclusive. Returns the end of the last one.
    fn remove(&mut self, start: u64, end: u64) -> Option<u64> {
        let mut last = None;
        while let Some((first, old_end)) = self.ranges.range(start..=end).next().map(|(s, e)| (*s, *e)) {
            self.ranges.remove(&first);
            self.bytes -= old_end - first;
            last = Some(old_end);
        }
        last
    }

    fn keep(&mut self, start: u64, end: u64) {
        if start < end {
            self.ranges.insert(start, end);
            self.bytes += end - start;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CoveredPages, PAGE};

    /// Checks that pages are counted once. Ranges are in pages; true covers, false releases.
    #[test]
    fn pages_count_once_until_they_are_released() {
        type Steps = &'static [(bool, u64, u64)];
        type Row = (Steps, &'static [(u64, u64)], u64);
        let table: [Row; 8] = [
            (&[(true, 0, 2)], &[(0, 2)], 2),
            (&[(true, 0, 2), (true, 1, 2)], &[(0, 2)], 2),
            (&[(true, 0, 2), (true, 2, 3)], &[(0, 3)], 3),
            (&[(true, 4, 6), (true, 0, 1), (true, 1, 5)], &[(0, 6)], 6),
            (&[(true, 4, 6), (true, 0, 1), (true, 2, 3)], &[(0, 1), (2, 3), (4, 6)], 4),
            (&[(true, 0, 9), (false, 3, 5)], &[(0, 3), (5, 9)], 9),
            (&[(true, 0, 3), (true, 5, 9), (false, 2, 6), (true, 2, 3)], &[(0, 3), (6, 9)], 7),
            (&[(true, 1, 2), (true, 3, 4), (false, 0, 9)], &[], 2),
        ];
        for (steps, ranges, peak) in table {
            let mut covered = CoveredPages::default();
            for (covers, start, end) in steps {
                match covers {
                    true => covered.cover(start * PAGE, end * PAGE),
                    false => covered.uncover(start * PAGE, end * PAGE),
                }
            }
            let actual: Vec<_> =
                covered.ranges.iter().map(|(start, end)| (start / PAGE, end / PAGE)).collect();
            assert_eq!(actual, ranges, "{steps:?}");
            assert_eq!(covered.peak(), peak * PAGE, "{steps:?}");
            assert_eq!(covered.bytes, ranges.iter().map(|(start, end)| (end - start) * PAGE).sum::<u64>());
        }
    }
}
