//! Segments of memory that a rank reserves before anything else (`memory.preallocate`).

use device::{Device, StreamKind};
use memory::PoolKind;

/// A segment of a pool, or the mapped part of an expandable segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Preallocation {
    /// The stream that uses it.
    pub stream: StreamKind,
    /// Whether the segment belongs to the pool for blocks of up to [`memory::SMALL_SIZE`].
    pub small: bool,
    /// Bytes of the segment.
    pub bytes: u64,
}

impl Preallocation {
    /// Returns the segments of a device's allocator, in an order independent of addresses.
    pub fn from_device(device: &Device) -> Vec<Self> {
        let snapshot = device.with_allocator(|allocator| allocator.snapshot());
        let taken = snapshot.segments.iter().filter_map(|segment| {
            let stream = StreamKind::ALL.into_iter().find(|stream| stream.handle() == segment.stream)?;
            let small = segment.kind == PoolKind::Small;
            Some(Preallocation { stream, small, bytes: segment.total_size })
        });
        let mut taken: Vec<_> = taken.collect();
        taken.sort_unstable();
        taken
    }
}
