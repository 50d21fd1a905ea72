//! The allocator's counters, with the keys of `torch.cuda.memory_stats()`.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

system::names! {
    /// A quantity that is counted for each pool kind.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[repr(u8)]
    pub enum Metric {
        /// Number of allocated blocks.
        Allocation = "allocation",
        /// Number of segments taken from the driver, without expandable ones.
        Segment = "segment",
        /// Number of blocks that cannot be reused: allocated, or freed and waiting for another stream.
        Active = "active",
        /// Number of idle blocks that share a segment with others, without expandable segments.
        InactiveSplit = "inactive_split",
        /// Bytes of allocated blocks, rounding included.
        AllocatedBytes = "allocated_bytes",
        /// Bytes held from the driver: segments and mapped pages.
        ReservedBytes = "reserved_bytes",
        /// Bytes of active blocks, rounding included.
        ActiveBytes = "active_bytes",
        /// Bytes of idle blocks that share a segment with others, without expandable segments.
        InactiveSplitBytes = "inactive_split_bytes",
        /// Bytes requested by the owners of active blocks, without rounding.
        RequestedBytes = "requested_bytes",
    }
}

system::names! {
    /// Kind of pools over which a quantity is counted.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[repr(u8)]
    pub enum PoolKind {
        /// Small and large pools together.
        All = "all",
        /// Pools for blocks up to 1 MiB.
        Small = "small_pool",
        /// Pools for blocks over 1 MiB.
        Large = "large_pool",
    }
}

/// Current value, peak and cumulative sums of one quantity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistic {
    /// Current value.
    pub current: i64,
    /// Highest value since the start or the last reset of peaks.
    pub peak: i64,
    /// Sum of all increases since the start or the last reset of sums.
    pub allocated: i64,
    /// Sum of all decreases since the start or the last reset of sums.
    pub freed: i64,
}

impl Statistic {
    #[inline]
    fn increase(&mut self, by: i64) {
        self.current += by;
        self.peak = self.peak.max(self.current);
        // The sum may pass 2⁶³ in a long run; it wraps, as PyTorch's does.
        self.allocated = self.allocated.wrapping_add(by);
    }

    #[inline]
    fn decrease(&mut self, by: i64) {
        self.current -= by;
        self.freed = self.freed.wrapping_add(by);
    }

    #[inline]
    fn change(&mut self, by: i64) {
        if by > 0 {
            self.increase(by);
        } else {
            self.decrease(-by);
        }
    }

    /// Returns the four values with the suffixes of their keys, in alphabetical order.
    #[must_use]
    pub const fn fields(&self) -> [(&'static str, i64); 4] {
        [("allocated", self.allocated), ("current", self.current), ("freed", self.freed), ("peak", self.peak)]
    }
}

/// All counters. Sizes are bytes of blocks unless stated otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    arrays: [[Statistic; 3]; 9],
    /// Number of allocated blocks of at least `max_split_size`.
    pub oversize_allocations: Statistic,
    /// Number of segments of at least `max_split_size`.
    pub oversize_segments: Statistic,
    /// Number of allocations retried after the cache was released.
    pub num_alloc_retries: i64,
    /// Number of out-of-memory errors returned.
    pub num_ooms: i64,
    /// Number of waits for all events.
    pub num_sync_all_streams: i64,
    /// Number of segments allocated and map operations.
    pub num_device_alloc: i64,
    /// Number of segments freed and ranges unmapped.
    pub num_device_free: i64,
    /// `max_split_size` when the allocator was created; −1 if unlimited.
    pub max_split_size: i64,
}

/// Where the value of a key is stored.
#[derive(Clone, Copy)]
enum Location {
    Array(usize, usize, usize),
    OversizeAllocations(usize),
    OversizeSegments(usize),
    Counter(fn(&Statistics) -> i64),
}

static KEYS: LazyLock<Vec<(String, Location)>> = LazyLock::new(|| {
    let endings = Statistic::default().fields().map(|(ending, _)| ending);
    let mut keys: Vec<(String, Location)> = vec![
        ("num_alloc_retries".into(), Location::Counter(|s| s.num_alloc_retries)),
        ("num_ooms".into(), Location::Counter(|s| s.num_ooms)),
        ("num_sync_all_streams".into(), Location::Counter(|s| s.num_sync_all_streams)),
        ("num_device_alloc".into(), Location::Counter(|s| s.num_device_alloc)),
        ("num_device_free".into(), Location::Counter(|s| s.num_device_free)),
        ("max_split_size".into(), Location::Counter(|s| s.max_split_size)),
    ];
    for (f, ending) in endings.into_iter().enumerate() {
        keys.push((format!("oversize_allocations.{ending}"), Location::OversizeAllocations(f)));
        keys.push((format!("oversize_segments.{ending}"), Location::OversizeSegments(f)));
        for metric in Metric::ALL {
            for kind in PoolKind::ALL {
                let key = format!("{}.{}.{ending}", metric.name(), kind.name());
                keys.push((key, Location::Array(metric as usize, kind as usize, f)));
            }
        }
    }
    keys.sort_by(|a, b| a.0.cmp(&b.0));
    keys
});

impl Statistics {
    /// Returns the statistic of one metric for one kind of pools.
    #[must_use]
    #[inline]
    pub const fn metric(&self, metric: Metric, kind: PoolKind) -> &Statistic {
        &self.arrays[metric as usize][kind as usize]
    }

    /// Returns the number of blocks allocated since the start.
    #[must_use]
    pub const fn handed_out(&self) -> u64 {
        self.metric(Metric::Allocation, PoolKind::All).allocated as u64
    }

    /// Returns the bytes of allocated blocks.
    #[must_use]
    pub const fn allocated(&self) -> u64 {
        self.metric(Metric::AllocatedBytes, PoolKind::All).current as u64
    }

    /// Returns the bytes of all blocks allocated since the start.
    #[must_use]
    pub const fn allocated_in_total(&self) -> u64 {
        self.metric(Metric::AllocatedBytes, PoolKind::All).allocated as u64
    }

    /// Returns the bytes held from the driver.
    #[must_use]
    pub const fn reserved(&self) -> u64 {
        self.metric(Metric::ReservedBytes, PoolKind::All).current as u64
    }

    /// Returns the peak of the allocated bytes.
    #[must_use]
    pub const fn peak_allocated(&self) -> u64 {
        self.metric(Metric::AllocatedBytes, PoolKind::All).peak as u64
    }

    /// Returns the peak of the bytes held from the driver.
    #[must_use]
    pub const fn peak_reserved(&self) -> u64 {
        self.metric(Metric::ReservedBytes, PoolKind::All).peak as u64
    }

    /// Returns the value of a key such as `allocated_bytes.all.peak`; `None` for an unknown key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<i64> {
        let index = KEYS.binary_search_by(|(k, _)| k.as_str().cmp(key)).ok()?;
        Some(self.at(KEYS[index].1))
    }

    /// Returns all 122 keys with their values, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, i64)> + '_ {
        KEYS.iter().map(|(key, index)| (key.as_str(), self.at(*index)))
    }

    fn at(&self, index: Location) -> i64 {
        match index {
            Location::Array(metric, kind, f) => self.arrays[metric][kind].fields()[f].1,
            Location::OversizeAllocations(f) => self.oversize_allocations.fields()[f].1,
            Location::OversizeSegments(f) => self.oversize_segments.fields()[f].1,
            Location::Counter(read) => read(self),
        }
    }

    #[inline]
    pub(crate) fn increase(&mut self, metric: Metric, kind: PoolKind, by: u64) {
        let row = &mut self.arrays[metric as usize];
        row[0].increase(by as i64);
        row[kind as usize].increase(by as i64);
    }

    #[inline]
    pub(crate) fn decrease(&mut self, metric: Metric, kind: PoolKind, by: u64) {
        let row = &mut self.arrays[metric as usize];
        row[0].decrease(by as i64);
        row[kind as usize].decrease(by as i64);
    }

    /// Changes a metric by `by`. Increases add to `allocated`, decreases to `freed`.
    #[inline]
    pub(crate) fn change(&mut self, metric: Metric, kind: PoolKind, by: i64) {
        let row = &mut self.arrays[metric as usize];
        row[0].change(by);
        row[kind as usize].change(by);
    }

    pub(crate) fn count_oversize_allocation(&mut self, by: i64) {
        self.oversize_allocations.change(by);
    }

    pub(crate) fn count_oversize_segment(&mut self, by: i64) {
        self.oversize_segments.change(by);
    }

    fn each(&mut self) -> impl Iterator<Item = &mut Statistic> {
        let oversize = [&mut self.oversize_allocations, &mut self.oversize_segments];
        self.arrays.iter_mut().flatten().chain(oversize)
    }

    pub(crate) fn reset_peak(&mut self) {
        self.each().for_each(|s| s.peak = s.current);
    }

    pub(crate) fn reset_accumulated(&mut self) {
        self.each().for_each(|s| (s.allocated, s.freed) = (0, 0));
        self.num_alloc_retries = 0;
        self.num_ooms = 0;
        self.num_sync_all_streams = 0;
        self.num_device_alloc = 0;
        self.num_device_free = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_pytorchs() {
        let statistics = Statistics { max_split_size: -1, ..Statistics::default() };
        let keys: Vec<_> = statistics.iter().collect();
        assert_eq!(keys.len(), 122);
        assert!(keys.is_sorted());
        assert_eq!(keys[0].0, "active.all.allocated");
        assert_eq!(statistics.get("max_split_size"), Some(-1));
        assert_eq!(statistics.get("allocation.small_pool.freed"), Some(0));
        assert_eq!(statistics.get("allocated.all.freed"), None);
    }
}
