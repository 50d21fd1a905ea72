//! Host pools: host memory with an allocator of its own, for offloaded arrays that a device needs a part at a
//! time.
//!
//! A pool is a [`Device`] beside the rank's: pinned memory on a GPU, ordinary memory on the CPU, none on
//! Meta. The host reads and writes its tensors like those of any device. Copies between a pool and the rank's
//! device run on a stream, so they are ordered with compute work only by events.

use memory::Settings;

use crate::buffer::Region;
use crate::call_log::CopyKind;
use crate::description::{Backend, Description, DeviceOptions, Kind};
use crate::device::{Beside, Device, OnDevice};
use crate::error::Result;
use crate::raw::host::HostMemory;
use crate::raw::meta::MetaMemory;
use crate::raw::pinned::PinnedMemory;
use crate::stream::StreamKind;
use crate::transfer::{copy_words, same_length};

/// Size of a pool on Meta in bytes, practically unlimited, because the host of the run may be another one.
const BOUNDLESS: u64 = 1 << 56;

impl Device {
    /// Creates an empty host pool for this device. Its segments have fixed sizes, whatever the settings of
    /// the device's own allocator.
    ///
    /// # Errors
    /// None; if the host's memory does not suffice, allocations fail.
    pub fn host_pool(&self) -> Result<Device> {
        let host = Description::host();
        let options = DeviceOptions { settings: Settings::default(), ..DeviceOptions::default() };
        let description = Description { name: "host memory".to_owned(), ..host };
        let total = description.total_bytes;
        let beside = Beside::pool_of(self);
        if self.is_meta() {
            let description = Description { total_bytes: BOUNDLESS, ..description };
            let is_pinned = self.description().kind == Kind::Cuda;
            let raw = Box::new(MetaMemory::pool(&description, self.page_tables(), is_pinned));
            return Self::new(Backend::Meta, self.rank(), description, raw, beside, &options);
        }
        let Some(cuda) = self.gpu() else {
            let raw = Box::new(HostMemory::new(total));
            return Self::new(Backend::Cpu, self.rank(), description, raw, beside, &options);
        };
        let raw = Box::new(PinnedMemory::new(&cuda.context, total));
        Self::new(Backend::Cpu, self.rank(), description, raw, beside, &options)
    }

    /// Copies `source`, in a pool of this device, to `target` on it, of the same length.
    pub fn copy_from_pool(&self, source: Region<'_>, target: Region<'_>, stream: StreamKind) -> Result<()> {
        same_length("copy_from_pool", source.bytes, target.bytes)?;
        match self.gpu_to_use()? {
            Some(cuda) => {
                self.interrupt_capture("a copy from a host pool")?;
                cuda.copy_from_pool(source, target, stream)?.on(self)
            }
            None if self.is_meta() => {
                self.log_copy(CopyKind::FromPool, source.bytes, stream);
                Ok(())
            }
            None => copy_words(source, target),
        }
    }

    /// Copies `source` on this device to `target`, in a pool of this device, of the same length. The caller
    /// passes the end of the copies to [`Device::fill_until`].
    pub fn copy_to_pool(&self, source: Region<'_>, target: Region<'_>, stream: StreamKind) -> Result<()> {
        same_length("copy_to_pool", source.bytes, target.bytes)?;
        match self.gpu_to_use()? {
            Some(cuda) => {
                self.interrupt_capture("a copy to a host pool")?;
                cuda.copy_to_pool(source, target, stream)?.on(self)
            }
            None if self.is_meta() => {
                self.log_copy(CopyKind::ToPool, source.bytes, stream);
                Ok(())
            }
            None => copy_words(source, target),
        }
    }
}
