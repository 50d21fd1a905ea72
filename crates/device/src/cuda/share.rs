//! Sharing device memory with the GPUs of other ranks, in this process or another process of the host: the
//! owner's side. Other ranks map the memory with [`super::PeerMemory`]. Nothing is allocated for it.
#![allow(unsafe_code)] // mappings and handles belong to the driver

use std::os::fd::{FromRawFd, OwnedFd};

use cudarc::driver::{result, sys};

use super::Cuda;
use super::error::{CudaError, Named, Result};
use crate::buffer::Region;
use crate::device::{Device, OnDevice};
use crate::raw::cuda::Allocated;

pub(super) const FILE: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
/// Bytes of an IPC handle, with which another process opens an allocation.
pub(super) const NAME_BYTES: usize = 64;

/// A page or allocation as the driver provided it. Mappings always cover a whole extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// First address on the owner's GPU.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Whether the extent is a page of a reserved range; otherwise it is an allocation.
    pub is_page: bool,
}

impl Device {
    /// Returns the GPU's UUID, the same in every process.
    pub fn gpu_uuid(&self) -> crate::Result<[u8; 16]> {
        let cuda = self.gpu_or_refuse("cuDeviceGetUuid")?;
        let uuid = result::device::get_uuid(cuda.context.cu_device()).named("cuDeviceGetUuid");
        Ok(uuid.on(self)?.bytes.map(|byte| byte as u8))
    }

    /// Returns this process's ordinal of GPU `uuid` if this GPU can access its memory, else `None`.
    pub fn reachable(&self, uuid: [u8; 16]) -> crate::Result<Option<usize>> {
        let cuda = self.gpu_or_refuse("cuDeviceCanAccessPeer")?;
        reachable(cuda, uuid).on(self)
    }

    /// Returns the extents that contain these regions, without duplicates, sorted by address.
    ///
    /// # Errors
    /// A region outside its buffer, or memory that this device's allocator does not own.
    pub fn extents(&self, regions: &[Region<'_>]) -> crate::Result<Vec<Extent>> {
        let cuda = self.gpu_or_refuse("extents")?;
        let allocated = Allocated::lock(&cuda.allocated);
        let mut extents = Vec::new();
        for region in regions {
            let mut at = region.checked_address()?;
            let end = region.buffer.address() + region.end() as u64;
            while at < end {
                let extent = extent_at(&allocated, at).ok_or_else(|| {
                    let text = format!("{at:#x} is not memory of this device");
                    self.cuda_error(CudaError { call: "extents", code: 0, text })
                })?;
                at = extent.address + extent.bytes;
                extents.push(extent);
            }
        }
        extents.sort_unstable();
        extents.dedup();
        Ok(extents)
    }

    /// Retains a page so that others can map it.
    pub fn hold_page(&self, extent: &Extent) -> crate::Result<Page> {
        self.gpu_or_refuse("cuMemRetainAllocationHandle")?;
        let mut handle = 0;
        let at = std::ptr::without_provenance_mut(extent.address as usize);
        // SAFETY: the driver refuses an address that is not a mapped page's; the handle is released when
        // dropped.
        let held = unsafe { sys::cuMemRetainAllocationHandle(&raw mut handle, at) }.result();
        held.named("cuMemRetainAllocationHandle").on(self)?;
        Ok(Page { handle })
    }

    /// Returns the IPC handle with which other processes open an allocation.
    pub fn name_of(&self, extent: &Extent) -> crate::Result<[u8; NAME_BYTES]> {
        self.gpu_or_refuse("cuIpcGetMemHandle")?;
        let mut name = sys::CUipcMemHandle { reserved: [0; NAME_BYTES] };
        // SAFETY: the call writes the name; the driver refuses an address that is not an allocation's.
        let named = unsafe { sys::cuIpcGetMemHandle(&raw mut name, extent.address) }.result();
        named.named("cuIpcGetMemHandle").on(self)?;
        Ok(name.reserved.map(|byte| byte as u8))
    }
}

fn extent_at(allocated: &Allocated, at: u64) -> Option<Extent> {
    let find_extent = |entries: &std::collections::BTreeMap<u64, u64>, is_page| {
        let (address, bytes) = entries.range(..=at).next_back()?;
        (at < address + bytes).then_some(Extent { address: *address, bytes: *bytes, is_page })
    };
    find_extent(&allocated.pages, true).or_else(|| find_extent(&allocated.allocations, false))
}

fn reachable(cuda: &Cuda, uuid: [u8; 16]) -> Result<Option<usize>> {
    let own = cuda.context.cu_device();
    for ordinal in 0..result::device::get_count().named("cuDeviceGetCount")? {
        let device = result::device::get(ordinal).named("cuDeviceGet")?;
        let id = result::device::get_uuid(device).named("cuDeviceGetUuid")?;
        if id.bytes.map(|byte| byte as u8) != uuid {
            continue;
        }
        let mut can = i32::from(device == own);
        if can == 0 {
            // SAFETY: the driver returned both devices, and the call writes an integer.
            unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, own, device) }
                .result()
                .named("cuDeviceCanAccessPeer")?;
        }
        return Ok((can != 0).then_some(ordinal as usize));
    }
    Ok(None)
}

/// A page that its owner retains while others map it.
#[derive(Debug)]
pub struct Page {
    handle: u64,
}

impl Page {
    /// Returns the identifier of the page for other ranks of this process.
    pub fn number(&self) -> u64 {
        self.handle
    }

    /// Creates a file descriptor of the page for other processes.
    ///
    /// # Errors
    /// A page that was not created as shareable.
    pub fn file(&self) -> Result<OwnedFd> {
        let mut file: i32 = -1;
        // SAFETY: the handle is held, and the call writes a file descriptor.
        unsafe { sys::cuMemExportToShareableHandle((&raw mut file).cast(), self.handle, FILE, 0) }
            .result()
            .named("cuMemExportToShareableHandle")?;
        // SAFETY: the driver opened the descriptor for the caller, who owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(file) })
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: retained once, released once; mappings keep the memory.
        let _ = unsafe { sys::cuMemRelease(self.handle) };
    }
}
