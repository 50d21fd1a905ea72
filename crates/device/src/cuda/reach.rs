//! Memory of other ranks' GPUs, mapped for one GPU.
#![allow(unsafe_code)] // mappings are the driver's

use std::marker::PhantomData;
use std::os::fd::{AsRawFd, OwnedFd};

use cudarc::driver::{result, sys};

use super::error::Named;
use super::share::{Extent, FILE, NAME_BYTES};
use crate::buffer::Region;
use crate::device::Device;

/// Source of a page to be mapped.
#[derive(Debug)]
pub enum PageSource {
    /// This process, by [`super::Page::number`]; its owner holds it meanwhile.
    Here(u64),
    /// Another, by [`super::Page::file`].
    File(OwnedFd),
}

/// A run of adjacent pages, or one allocation, of another GPU and where it is for this one.
#[derive(Debug)]
struct Run {
    theirs: u64,
    bytes: u64,
    here: u64,
    kind: RunKind,
}

#[derive(Debug)]
enum RunKind {
    /// A range of this many bytes mapped so far, in the order of the pages.
    Range { mapped: Vec<(u64, u64)> },
    /// An allocation of another process, open here.
    Open,
    /// This GPU's own, of which nothing is held.
    Own,
    /// An allocation of this process, whose GPU's context is held.
    Enabled { peer: sys::CUdevice },
}

/// Memory of one rank, its own or another's, as one GPU reaches it. Dropping it unmaps it: the work that uses
/// it must be over.
#[derive(Debug)]
pub struct PeerMemory {
    device: Device,
    runs: Vec<Run>,
}

impl PeerMemory {
    /// Returns the content of extents of `device` itself, which the caller keeps allocated while work uses
    /// it.
    pub fn own(device: &Device, extents: &[Extent]) -> Self {
        let run = |extent: &Extent| Run {
            theirs: extent.address,
            bytes: extent.bytes,
            here: extent.address,
            kind: RunKind::Own,
        };
        let mut runs: Vec<Run> = Vec::new();
        for next in extents.iter().map(run) {
            match runs.last_mut() {
                Some(last) if last.theirs + last.bytes == next.theirs => last.bytes += next.bytes,
                _ => runs.push(next),
            }
        }
        PeerMemory { device: device.clone(), runs }
    }

    /// Nothing yet, of another rank, for `device`.
    pub fn new(device: &Device) -> Self {
        PeerMemory { device: device.clone(), runs: Vec::new() }
    }

    /// Takes addresses for these extents' pages, which are in the order of their addresses; nothing is behind
    /// them before [`PeerMemory::map`]. Errors: the driver's.
    pub fn reserve(&mut self, extents: &[Extent]) -> crate::Result<()> {
        for extent in extents.iter().filter(|extent| extent.is_page) {
            match self.runs.last_mut() {
                Some(run) if run.theirs + run.bytes == extent.address => run.bytes += extent.bytes,
                _ => {
                    let kind = RunKind::Range { mapped: Vec::new() };
                    self.runs.push(Run { theirs: extent.address, bytes: extent.bytes, here: 0, kind });
                }
            }
        }
        for index in 0..self.runs.len() {
            let mut here = 0;
            // SAFETY: the pointer is to a live value; a range alone is no memory.
            let taken =
                unsafe { sys::cuMemAddressReserve(&raw mut here, self.runs[index].bytes as usize, 0, 0, 0) };
            self.named(taken, "cuMemAddressReserve")?;
            self.runs[index].here = here;
        }
        Ok(())
    }

    /// Puts a page at its place in what was reserved. Errors: the driver's; a page that was not reserved.
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
        let run = self.runs.iter().position(|run| {
            (run.theirs..run.theirs + run.bytes).contains(&extent.address)
                && matches!(run.kind, RunKind::Range { .. })
        });
        let mapped = run.map_or(Ok(()), |run| {
            let at = self.runs[run].here + (extent.address - self.runs[run].theirs);
            // SAFETY: the page lies in a range that `reserve` took for it, and nothing is mapped there yet.
            let mapped = unsafe { sys::cuMemMap(at, extent.bytes as usize, 0, handle, 0) };
            self.named(mapped, "cuMemMap")?;
            if let RunKind::Range { mapped } = &mut self.runs[run].kind {
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

    /// Lets this GPU read and write all pages that were mapped. Errors: the driver's.
    pub fn allow(&self) -> crate::Result<()> {
        let cuda = self.device.gpu_or_refuse("cuMemSetAccess")?;
        let access = sys::CUmemAccessDesc {
            location: sys::CUmemLocation {
                type_: sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE,
                id: cuda.context.ordinal() as i32,
            },
            flags: sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        for run in self.runs.iter().filter(|run| matches!(run.kind, RunKind::Range { .. })) {
            // SAFETY: all pages of the range are mapped, or the driver refuses; the description is alive.
            let allowed = unsafe { sys::cuMemSetAccess(run.here, run.bytes as usize, &raw const access, 1) };
            self.named(allowed, "cuMemSetAccess")?;
        }
        Ok(())
    }

    /// An allocation of another process, by its name. Errors: the driver's.
    pub fn open(&mut self, extent: &Extent, name: [u8; NAME_BYTES]) -> crate::Result<()> {
        let lazily = sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let name = sys::CUipcMemHandle { reserved: name.map(|byte| byte as std::ffi::c_char) };
        let mut here = 0;
        // SAFETY: the call writes an address; a name that is none is refused.
        let opened = unsafe { sys::cuIpcOpenMemHandle_v2(&raw mut here, name, lazily) };
        self.named(opened, "cuIpcOpenMemHandle")?;
        self.runs.push(Run { theirs: extent.address, bytes: extent.bytes, here, kind: RunKind::Open });
        Ok(())
    }

    /// An allocation of this process on GPU `ordinal`: its address is the same here. Errors: the driver's.
    pub fn enable(&mut self, extent: &Extent, ordinal: usize) -> crate::Result<()> {
        use sys::cudaError_enum::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED as ALREADY;
        let peer = result::device::get(ordinal as i32).named("cuDeviceGet");
        let peer = peer.map_err(|error| self.device.cuda_error(error))?;
        // SAFETY: the device was given out just now; released when dropped.
        let context = unsafe { result::primary_ctx::retain(peer) }.named("cuDevicePrimaryCtxRetain");
        let context = context.map_err(|error| self.device.cuda_error(error))?;
        let kind = RunKind::Enabled { peer };
        self.runs.push(Run { theirs: extent.address, bytes: extent.bytes, here: extent.address, kind });
        // SAFETY: the context is alive, and it is another GPU's or the driver refuses.
        match unsafe { sys::cuCtxEnablePeerAccess(context, 0) } {
            ALREADY => Ok(()),
            answer => self.named(answer, "cuCtxEnablePeerAccess"),
        }
    }

    /// Address on this GPU of `bytes` bytes at the owner's `address`; `None` where they are not mapped.
    pub fn at(&self, address: u64, bytes: usize) -> Option<PeerAddress<'_>> {
        let run = self.runs.iter().find(|run| {
            run.theirs <= address
                && address.checked_add(bytes as u64).is_some_and(|end| end <= run.theirs + run.bytes)
        })?;
        Some(PeerAddress { address: run.here + (address - run.theirs), bytes, memory: PhantomData })
    }

    fn named(&self, answer: sys::CUresult, call: &'static str) -> crate::Result<()> {
        answer.result().named(call).map_err(|error| self.device.cuda_error(error))
    }
}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        if self.device.make_current().is_err() {
            return;
        }
        for run in self.runs.drain(..) {
            // What the driver refuses here has nobody to act on it: the rank is on its way out.
            match run.kind {
                RunKind::Range { mapped } => {
                    for (at, bytes) in mapped {
                        // SAFETY: mapped once in `map`; nothing is under way that uses it.
                        let _ = unsafe { sys::cuMemUnmap(at, bytes as usize) };
                    }
                    if run.here != 0 {
                        // SAFETY: taken once in `reserve`, with nothing mapped any more.
                        let _ = unsafe { sys::cuMemAddressFree(run.here, run.bytes as usize) };
                    }
                }
                RunKind::Own => {}
                RunKind::Open => {
                    // SAFETY: opened once in `open`.
                    let _ = unsafe { sys::cuIpcCloseMemHandle(run.here) };
                }
                RunKind::Enabled { peer } => {
                    // SAFETY: retained once in `enable`.
                    let _ = unsafe { result::primary_ctx::release(peer) };
                }
            }
        }
    }
}

/// A place in a rank's memory, as one GPU sees it.
#[derive(Clone, Copy, Debug)]
pub struct PeerAddress<'a> {
    pub(super) address: u64,
    pub(super) bytes: usize,
    memory: PhantomData<&'a PeerMemory>,
}

impl<'a> PeerAddress<'a> {
    /// A region of this GPU's own. Errors: one outside its buffer.
    pub(crate) fn of(region: Region<'a>) -> crate::Result<Self> {
        Ok(PeerAddress { address: region.checked_address()?, bytes: region.bytes, memory: PhantomData })
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether a kernel can read the range as 16-byte vectors.
    pub fn is_aligned(&self) -> bool {
        self.address.is_multiple_of(16)
    }
}
