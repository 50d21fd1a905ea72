//! Copies and zero-fills on one GPU, and copies between it and pinned memory.
#![allow(unsafe_code)] // the driver copies between addresses

use cudarc::driver::{result, sys};

use super::Cuda;
use super::error::{Named, Result};
use super::pinned::{Pinned, PinnedCopy};
use super::reach::PeerAddress;
use super::streams::SharedPoint;
use crate::buffer::Region;
use crate::stream::StreamKind;
use crate::work::Work;

impl Cuda {
    /// Enqueues a copy. Outer errors: a region outside its buffer; inner errors: the driver's.
    pub(crate) fn copy(
        &self,
        source: Region<'_>,
        target: Region<'_>,
        stream: StreamKind,
    ) -> crate::Result<Result<()>> {
        let from = source.checked_address()?;
        let to = target.checked_address()?;
        let stream = self.streams.handle(stream);
        let work = Work { bytes: 2 * source.bytes as u64, flops: 0 };
        let timed = self.timed(stream, "copy", || "copy".to_owned(), work);
        // SAFETY: both regions were checked to be inside live buffers and have one length.
        let copied = unsafe { result::memcpy_dtod_async(to, from, source.bytes, stream) };
        Ok(copied.named("cuMemcpyDtoDAsync").and_then(|()| timed.finish()))
    }

    /// Enqueues a copy from a pinned segment.
    pub(crate) fn copy_from_pool(
        &self,
        source: Region<'_>,
        target: Region<'_>,
        stream: StreamKind,
    ) -> crate::Result<Result<()>> {
        let from = source.checked_address()?;
        let to = target.checked_address()?;
        let stream = self.streams.handle(stream);
        let timed = self.timed(stream, "copy", || "from pool".to_owned(), one_way(source));
        let from = std::ptr::with_exposed_provenance(from as usize);
        // SAFETY: both regions were checked to be inside live buffers and have one length; the segment of the
        // source stays pinned until work that uses it is over.
        let copied = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, source.bytes, stream) }.result();
        Ok(copied.named("cuMemcpyHtoDAsync").and_then(|()| timed.finish()))
    }

    /// Enqueues a copy to a pinned segment.
    pub(crate) fn copy_to_pool(
        &self,
        source: Region<'_>,
        target: Region<'_>,
        stream: StreamKind,
    ) -> crate::Result<Result<()>> {
        let from = source.checked_address()?;
        let to = target.checked_address()?;
        let stream = self.streams.handle(stream);
        let timed = self.timed(stream, "copy", || "to pool".to_owned(), one_way(source));
        let to = std::ptr::with_exposed_provenance_mut(to as usize);
        // SAFETY: as in `copy_from_pool`; the host waits for the copy before it reads the target.
        let copied = unsafe { sys::cuMemcpyDtoHAsync_v2(to, from, source.bytes, stream) }.result();
        Ok(copied.named("cuMemcpyDtoHAsync").and_then(|()| timed.finish()))
    }

    /// Enqueues a copy between GPUs, of the target's length, on a copy engine.
    pub(crate) fn copy_between(
        &self,
        name: &'static str,
        source: PeerAddress<'_>,
        target: PeerAddress<'_>,
        stream: StreamKind,
    ) -> Result<()> {
        let stream = self.streams.handle(stream);
        let work = Work { bytes: target.bytes as u64, flops: 0 };
        let timed = self.timed(stream, "copy", || name.to_owned(), work);
        // SAFETY: both ranges are mapped and have the same length; the owner of shared memory keeps it while
        // work uses it.
        let copied =
            unsafe { sys::cuMemcpyAsync(target.address, source.address, target.bytes, stream) }.result();
        copied.named("cuMemcpyAsync").and_then(|()| timed.finish())
    }

    pub(crate) fn zero(&self, target: Region<'_>) -> crate::Result<Result<()>> {
        let to = target.checked_address()?;
        let stream = self.streams.handle(StreamKind::Compute);
        let timed =
            self.timed(stream, "copy", || "zero".to_owned(), Work { bytes: target.bytes as u64, flops: 0 });
        if target.bytes == 0 {
            return Ok(Ok(()));
        }
        // SAFETY: the region was checked to be inside a live buffer.
        let set = unsafe { result::memset_d8_async(to, 0, target.bytes, stream) };
        Ok(set.named("cuMemsetD8Async").and_then(|()| timed.finish()))
    }

    /// Enqueues copies to `memory` on the snapshot stream, after the compute work so far. Returns the end of
    /// the copies. Until then, callers must not read the block or write the sources.
    pub(crate) fn copy_to_pinned(
        &self,
        mut copies: Vec<PinnedCopy>,
        memory: &mut Pinned,
    ) -> Result<SharedPoint> {
        let stream = self.streams.handle(StreamKind::Snapshot);
        self.events.record(self.streams.handle(StreamKind::Compute))?.hold(stream)?;
        // Short copies end as fast as they are enqueued. Behind long ones they would fill the stream's queue,
        // which holds about a thousand, and the host would wait.
        copies.sort_by_key(|copy| copy.target.len());
        let bytes = copies.iter().map(|copy| copy.target.len() as u64).sum();
        let timed = self.timed(stream, "copy", || "to host".to_owned(), Work { bytes, flops: 0 });
        for PinnedCopy { address, target } in copies {
            let target = &mut memory.slice_mut()[target];
            // SAFETY: the source was checked to be inside a live buffer; the target is not read before the
            // point that is returned.
            unsafe { result::memcpy_dtoh_async(target, address, stream) }.named("cuMemcpyDtoHAsync")?;
        }
        timed.finish()?;
        SharedPoint::record(&self.context, stream)
    }
}

/// Returns the work of a copy over the link to the host.
fn one_way(region: Region<'_>) -> Work {
    Work { bytes: region.bytes as u64, flops: 0 }
}
