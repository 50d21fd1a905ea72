//! Memory reserved before anything else (`memory.preallocate`).
//!
//! It reserves what the plan holds at its end, for each pool and stream. So a run finds all memory among its
//! allocator's idle blocks, and requests nothing more from the driver.

use device::{Category, DType, Device, Request};
use memory::SMALL_SIZE;
use planned::Preallocation;
use tensor::Tensor;

use crate::error::Result;

/// Returns the segments that the allocator does not hold yet. An expandable segment is reduced by the part
/// already held.
fn lacking(device: &Device, segments: &[Preallocation]) -> Vec<Preallocation> {
    let mut lacking = segments.to_vec();
    let mut held = Preallocation::from_device(device);
    held.retain(|held| match lacking.iter().position(|segment| segment == held) {
        Some(equal) => {
            lacking.remove(equal);
            false
        }
        None => true,
    });
    for Preallocation { stream, small, bytes } in held {
        let same = lacking.iter_mut().filter(|segment| (segment.stream, segment.small) == (stream, small));
        if let Some(grown) = same.max_by_key(|segment| segment.bytes) {
            grown.bytes = grown.bytes.saturating_sub(bytes);
        }
    }
    lacking
}

/// Makes the allocator reserve the missing ones of these segments. They are idle afterwards, and peaks are
/// reset. On the CPU every page is written, because the system allocates pages on first write.
pub(crate) fn take(device: &Device, segments: &[Preallocation]) -> Result<()> {
    let mut held = Vec::new();
    for Preallocation { stream, small, bytes } in lacking(device, segments) {
        let block = if small { SMALL_SIZE } else { bytes.max(1) };
        for _ in 0..bytes / block {
            let request = Request::new(Category::Other, "preallocate").on(stream);
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
