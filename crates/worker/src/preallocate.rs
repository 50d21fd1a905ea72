//! Memory that a rank takes from its device before anything else (`memory.preallocate`).
//!
//! What is taken is what the plan has at its end, pool by pool and stream by stream, so that a run finds all
//! it needs among its allocator's idle blocks and asks the driver for nothing more.

use device::{Category, DType, Device, Request, StreamKind};
use memory::{PoolKind, SMALL_SIZE};
use tensor::Tensor;

use crate::error::Result;

/// A segment of a pool, or the mapped part of an expandable one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Preallocation {
    stream: StreamKind,
    /// For blocks of up to [`SMALL_SIZE`].
    small: bool,
    bytes: u64,
}

impl Preallocation {
    /// The segments of a device's allocator, in an order that does not depend on addresses.
    pub fn of(device: &Device) -> Vec<Self> {
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

/// Makes the allocator take these segments from the driver, less what it has; they are idle afterwards, and
/// the peaks start anew. On the host every page is written, since memory is taken when it is touched. Errors:
/// out of memory.
pub(crate) fn take(device: &Device, segments: &[Preallocation]) -> Result<()> {
    let mut held = Vec::new();
    for Preallocation { stream, small, bytes } in segments {
        let block = if *small { SMALL_SIZE } else { *bytes };
        for _ in 0..bytes / block {
            let request = Request::new(Category::Other, "preallocate").on(*stream);
            let words = (block / DType::F32.bytes() as u64) as usize;
            let idle = Tensor::empty(device, [words], DType::F32, request)?;
            if device.backend() == device::Backend::Cpu {
                idle.zero()?;
            }
            held.push(idle);
        }
    }
    drop(held);
    device.synchronize()?;
    device.with_allocator(|allocator| allocator.reset_peak());
    Ok(())
}
