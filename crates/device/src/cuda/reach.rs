//! Memory of other ranks' GPUs, mapped for access by one GPU.
#![allow(unsafe_code)] // mappings are the driver's handles

use std::marker::PhantomData;
use std::os::fd::{AsRawFd, OwnedFd};

use cudarc::driver::{result, sys};

use super::error::Named;
use super::share::{Extent, FILE, NAME_BYTES};
use crate::buffer::Region;
use crate::device::{Device, OnDevice};

/// Where a page to map comes from.
#[derive(Debug)]
pub enum PageSource {
    /// A page of this process, by [`super::Page::number`]. The owner must hold it while it is mapped.
    Here(u64),
    /// A page of another process, by the file descriptor of [`super::Page::file`].
    File(OwnedFd),
}

/// Adjacent pages, or one allocation, of another GPU, with their address on this GPU.
#[derive(Debug)]
struct Mapping {
    theirs: u64,
    bytes: u64,
    here: u64,
    kind: MappingKind,
}

#[derive(Debug)]
enum MappingKind {
    /// A reserved address range with the pages mapped so far, as (address, bytes) in order.
    Range { mapped: Vec<(u64, u64)> },
    /// An opened allocation of another process.
    Open,
    /// This GPU's own memory; nothing needs to be released.
    Own,
    /// An allocation of this process; retains the context of the owning GPU.
    Enabled { peer: sys::CUdevice },
}

/// One rank's memory, possibly this rank's own, mapped for one GPU. Dropping it unmaps the memory, so work
/// that uses it must have finished.
#[derive(Debug)]
pub struct PeerMemory {
    device: Device,
    mappings: Vec<Mapping>,
}

impl PeerMemory {
    /// Wraps memory of `device` itself. The caller keeps the extents allocated while work uses them.
    pub fn own(device: &Device, extents: &[Extent]) -> Self {
        let mapping = |extent: &Extent| Mapping {
            theirs: extent.address,
            bytes: extent.bytes,
            here: extent.address,
            kind: MappingKind::Own,
        };
        let mut mappings: Vec<Mapping> = Vec::new();
        for next in extents.iter().map(mapping) {
            match mappings.last_mut() {
                Some(last) if last.theirs + last.bytes == next.theirs => last.bytes += next.bytes,
                _ => mappings.push(next),
            }
        }
        PeerMemory { device: device.clone(), mappings }
    }

    /// Creates an empty mapping of another rank's memory for `device`.
    pub fn new(device: &Device) -> Self {
        PeerMemory { device: device.clone(), mappings: Vec::new() }
    }

    /// Reserves addresses for the pages of `extents`, which are sorted by address. [`PeerMemory::map`] then
    /// maps the pages.
    pub fn reserve(&mut self, extents: &[Extent]) -> crate::Result<()> {
        for extent in extents.iter().filter(|extent| extent.is_page) {
            match self.mappings.last_mut() {
                Some(mapping) if mapping.theirs + mapping.bytes == extent.address => {
                    mapping.bytes += extent.bytes
                }
                _ => {
                    let kind = MappingKind::Range { mapped: Vec::new() };
                    self.mappings.push(Mapping {
                        theirs: extent.address,
                        bytes: extent.bytes,
                        here: 0,
                        kind,
                    });
                }
            }
        }
        for index in 0..self.mappings.len() {
            let mut here = 0;
            // SAFETY: the pointer refers to a live value; a range alone is not memory.
            let taken = unsafe {
                sys::cuMemAddressReserve(&raw mut here, self.mappings[index].bytes as usize, 0, 0, 0)
            };
            self.named(taken, "cuMemAddressReserve")?;
            self.mappings[index].here = here;
        }
        Ok(())
    }

    /// Maps a page at its reserved address.
    ///
    /// # Errors
    /// The driver's; a page that was not reserved.
    pub fn map(&mut self, extent: &Extent, source: PageSource) -> crate::Result<()> {
        let (handle, imported) = match &source {
            PageSource::Here(handle) => (*handle, false),
            PageSource::File(file) => {
                let mut handle = 0;
                let file = std::ptr::without_provenance_mut(file.as_raw_fd() as usize);
                // SAFETY: the file is open during the call, which takes the descriptor in place of a pointer.
                let opened = unsafe { sys::cuMemImportFromShareableHandle(&raw mut handle, file, FILE) };
                self.named(opened, "cuMemImportFromShareableHandle")?;
                (handle, true)
            }
        };
        let mapping = self.mappings.iter().position(|mapping| {
            (mapping.theirs..mapping.theirs + mapping.bytes).contains(&extent.address)
                && matches!(mapping.kind, MappingKind::Range { .. })
        });
        let mapped = mapping.map_or(Ok(()), |mapping| {
            let at = self.mappings[mapping].here + (extent.address - self.mappings[mapping].theirs);
            // SAFETY: the page lies in a range that `reserve` took for it, and nothing is mapped there yet.
            let mapped = unsafe { sys::cuMemMap(at, extent.bytes as usize, 0, handle, 0) };
            self.named(mapped, "cuMemMap")?;
            if let MappingKind::Range { mapped } = &mut self.mappings[mapping].kind {
                mapped.push((at, extent.bytes));
            }
            Ok(())
        });
        if imported {
            // SAFETY: imported above, released once; the mapping keeps the memory.
            let _ = unsafe { sys::cuMemRelease(handle) };
        }
        mapped
    }

    /// Enables read and write access of this GPU to all mapped pages.
    pub fn allow(&self) -> crate::Result<()> {
        let cuda = self.device.gpu_or_refuse("cuMemSetAccess")?;
        let access = sys::CUmemAccessDesc {
            location: sys::CUmemLocation {
                type_: sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE,
                id: cuda.context.ordinal() as i32,
            },
            flags: sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        for mapping in
            self.mappings.iter().filter(|mapping| matches!(mapping.kind, MappingKind::Range { .. }))
        {
            // SAFETY: all pages of the range are mapped, or the driver refuses; the description is alive.
            let allowed =
                unsafe { sys::cuMemSetAccess(mapping.here, mapping.bytes as usize, &raw const access, 1) };
            self.named(allowed, "cuMemSetAccess")?;
        }
        Ok(())
    }

    /// Opens an allocation of another process by its name.
    pub fn open(&mut self, extent: &Extent, name: [u8; NAME_BYTES]) -> crate::Result<()> {
        let lazily = sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let name = sys::CUipcMemHandle { reserved: name.map(|byte| byte as std::ffi::c_char) };
        let mut here = 0;
        // SAFETY: the call writes an address; the driver refuses an invalid name.
        let opened = unsafe { sys::cuIpcOpenMemHandle_v2(&raw mut here, name, lazily) };
        self.named(opened, "cuIpcOpenMemHandle")?;
        self.mappings.push(Mapping {
            theirs: extent.address,
            bytes: extent.bytes,
            here,
            kind: MappingKind::Open,
        });
        Ok(())
    }

    /// Enables access to an allocation of this process on GPU `ordinal`; its address stays the same.
    pub fn enable(&mut self, extent: &Extent, ordinal: usize) -> crate::Result<()> {
        use sys::cudaError_enum::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED as ALREADY;
        let peer = result::device::get(ordinal as i32).named("cuDeviceGet");
        let peer = peer.on(&self.device)?;
        // SAFETY: the driver returned the device just now; the context is released when dropped.
        let context = unsafe { result::primary_ctx::retain(peer) }.named("cuDevicePrimaryCtxRetain");
        let context = context.on(&self.device)?;
        let kind = MappingKind::Enabled { peer };
        self.mappings.push(Mapping {
            theirs: extent.address,
            bytes: extent.bytes,
            here: extent.address,
            kind,
        });
        // SAFETY: the context is alive; the driver refuses this GPU's own context.
        match unsafe { sys::cuCtxEnablePeerAccess(context, 0) } {
            ALREADY => Ok(()),
            answer => self.named(answer, "cuCtxEnablePeerAccess"),
        }
    }

    /// Returns this GPU's address of the `bytes` bytes at the owner's `address`; `None` if they are not
    /// mapped.
    pub fn at(&self, address: u64, bytes: usize) -> Option<PeerAddress<'_>> {
        let mapping = self.mappings.iter().find(|mapping| {
            mapping.theirs <= address
                && address.checked_add(bytes as u64).is_some_and(|end| end <= mapping.theirs + mapping.bytes)
        })?;
        Some(PeerAddress { address: mapping.here + (address - mapping.theirs), bytes, memory: PhantomData })
    }

    fn named(&self, answer: sys::CUresult, call: &'static str) -> crate::Result<()> {
        answer.result().named(call).on(&self.device)
    }
}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        if self.device.make_current().is_err() {
            return;
        }
        for mapping in self.mappings.drain(..) {
            // An error while dropping cannot be handled: the rank is ending.
            match mapping.kind {
                MappingKind::Range { mapped } => {
                    for (at, bytes) in mapped {
                        // SAFETY: mapped once in `map`; no running work uses it.
                        let _ = unsafe { sys::cuMemUnmap(at, bytes as usize) };
                    }
                    if mapping.here != 0 {
                        // SAFETY: taken once in `reserve`, with nothing mapped any more.
                        let _ = unsafe { sys::cuMemAddressFree(mapping.here, mapping.bytes as usize) };
                    }
                }
                MappingKind::Own => {}
                MappingKind::Open => {
                    // SAFETY: opened once in `open`.
                    let _ = unsafe { sys::cuIpcCloseMemHandle(mapping.here) };
                }
                MappingKind::Enabled { peer } => {
                    // SAFETY: retained once in `enable`.
                    let _ = unsafe { result::primary_ctx::release(peer) };
                }
            }
        }
    }
}

/// A range in one rank's memory, addressed by one GPU.
#[derive(Clone, Copy, Debug)]
pub struct PeerAddress<'a> {
    pub(super) address: u64,
    pub(super) bytes: usize,
    memory: PhantomData<&'a PeerMemory>,
}

impl<'a> PeerAddress<'a> {
    /// Converts a region of this GPU's own memory.
    pub(crate) fn from_region(region: Region<'a>) -> crate::Result<Self> {
        Ok(PeerAddress { address: region.checked_address()?, bytes: region.bytes, memory: PhantomData })
    }

    /// Returns the length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether a kernel can read the range as 16-byte vectors.
    pub fn is_aligned(&self) -> bool {
        self.address.is_multiple_of(16)
    }
}
