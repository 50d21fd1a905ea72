//! Segments of GPU memory: whole allocations, or pages mapped into a reserved range.
#![allow(unsafe_code)] // memory and ranges are raw driver addresses

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaContext, DriverError, result, sys};
use memory::{Capacity, EventId, Placement, RawError, RawMemory, Stream};

use crate::cuda::account::GpuUse;
use crate::cuda::streams::Streams;

/// Memory that the driver has provided, as bytes by address.
#[derive(Debug, Default)]
pub(crate) struct Allocated {
    /// Allocations outside mapped ranges, bytes by address.
    pub(crate) allocations: BTreeMap<u64, u64>,
    pub(crate) pages: BTreeMap<u64, u64>,
}

impl Allocated {
    pub(crate) fn lock(allocated: &Mutex<Self>) -> MutexGuard<'_, Self> {
        // Each change is one map operation, so a poisoned lock still guards correct entries.
        allocated.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A GPU's memory as the allocator's source of segments. Only synchronous driver calls are used: the driver's
/// own pool would hide bytes from the allocator.
#[derive(Debug)]
pub(crate) struct CudaMemory {
    context: Arc<CudaContext>,
    streams: Arc<Streams>,
    /// Memory usage shared by all ranks of this process on the GPU.
    shared: Arc<GpuUse>,
    next_order: u64,
    /// Memory and ranges to release when the device is dropped.
    allocated: Arc<Mutex<Allocated>>,
    ranges: HashMap<u64, u64>,
    /// Whether pages are created so that other processes can map them.
    shareable: bool,
    events: HashMap<u64, Recorded>,
    next_event: u64,
}

#[derive(Debug)]
struct Recorded(sys::CUevent);

// SAFETY: an event's handle may be used from any thread whose context is current.
unsafe impl Send for Recorded {}

impl CudaMemory {
    pub(crate) fn new(
        context: &Arc<CudaContext>,
        streams: &Arc<Streams>,
        shared: &Arc<GpuUse>,
        allocated: &Arc<Mutex<Allocated>>,
    ) -> Self {
        use sys::CUdevice_attribute_enum as Attribute;
        const FILES: Attribute = Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
        CudaMemory {
            context: Arc::clone(context),
            streams: Arc::clone(streams),
            shared: Arc::clone(shared),
            next_order: 0,
            allocated: Arc::clone(allocated),
            ranges: HashMap::new(),
            shareable: context.attribute(FILES).is_ok_and(|supported| supported != 0),
            events: HashMap::new(),
            next_event: 0,
        }
    }

    fn index(&mut self, address: u64, bytes: u64) -> Placement {
        let order = self.next_order;
        self.next_order += bytes;
        Placement { address, order }
    }

    /// Makes the context current, because any thread may free a buffer and so a segment.
    fn bind(&self) -> Result<(), RawError> {
        self.context.bind_to_thread().map_err(refused)
    }

    fn location(&self) -> sys::CUmemLocation {
        sys::CUmemLocation {
            type_: sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE,
            id: self.context.ordinal() as i32,
        }
    }

    /// Maps one page of memory at `address`, shareable if the system supports it.
    fn map_page(&mut self, address: u64, page: u64) -> Result<(), RawError> {
        match self.map_page_as(address, page, self.shareable) {
            Err(RawError::Driver { .. }) if self.shareable => {
                self.map_page_as(address, page, false)?;
                self.shareable = false;
                Ok(())
            }
            answer => answer,
        }
    }

    fn map_page_as(&self, address: u64, page: u64, shareable: bool) -> Result<(), RawError> {
        use sys::CUmemAllocationHandleType_enum as HandleType;
        let handle_type = match shareable {
            true => HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            false => HandleType(0),
        };
        let properties = properties(self.location(), handle_type);
        let mut handle = 0;
        // SAFETY: both pointers refer to live values; the handle is released below in any case.
        unsafe { sys::cuMemCreate(&raw mut handle, page as usize, &raw const properties, 0) }
            .result()
            .map_err(refused)?;
        // SAFETY: the page lies in a range that `reserve` took, and nothing is mapped there.
        let mapped = unsafe { sys::cuMemMap(address, page as usize, 0, handle, 0) }.result().map_err(refused);
        // SAFETY: the handle is released once; the mapping keeps the memory.
        let released = unsafe { sys::cuMemRelease(handle) }.result().map_err(refused);
        mapped.and(released)
    }

    fn unmap_range(&self, address: u64, bytes: u64) -> Result<(), RawError> {
        // SAFETY: the range holds whole pages that `map_page` mapped, idle as the allocator promises.
        unsafe { sys::cuMemUnmap(address, bytes as usize) }.result().map_err(refused)
    }
}

impl RawMemory for CudaMemory {
    fn allocate(&mut self, bytes: u64, _stream: Stream) -> Result<Placement, RawError> {
        self.bind()?;
        let mut reserved = self.shared.reserved();
        // SAFETY: the memory is not read before it is written, which tensors ensure.
        let address = unsafe { result::malloc_sync(bytes as usize) }.map_err(refused)?;
        Allocated::lock(&self.allocated).allocations.insert(address, bytes);
        *reserved += bytes;
        drop(reserved);
        Ok(self.index(address, bytes))
    }

    fn free(&mut self, address: u64, bytes: u64) -> Result<(), RawError> {
        self.bind()?;
        let mut reserved = self.shared.reserved();
        // SAFETY: the allocator returns the memory of `allocate` once; the driver waits for work that uses
        // it.
        unsafe { result::free_sync(address) }.map_err(refused)?;
        Allocated::lock(&self.allocated).allocations.remove(&address);
        *reserved -= bytes;
        Ok(())
    }

    fn reserve(&mut self, bytes: u64, _stream: Stream) -> Result<Placement, RawError> {
        self.bind()?;
        let mut address = 0;
        // SAFETY: the pointer refers to a live value; a range alone is not memory.
        unsafe { sys::cuMemAddressReserve(&raw mut address, bytes as usize, 0, 0, 0) }
            .result()
            .map_err(refused)?;
        self.ranges.insert(address, bytes);
        Ok(self.index(address, bytes))
    }

    fn unreserve(&mut self, address: u64, bytes: u64) -> Result<(), RawError> {
        self.bind()?;
        // SAFETY: the allocator returns the range of `reserve` once, with nothing mapped.
        unsafe { sys::cuMemAddressFree(address, bytes as usize) }.result().map_err(refused)?;
        self.ranges.remove(&address);
        Ok(())
    }

    fn map(&mut self, address: u64, bytes: u64, page: u64, _stream: Stream) -> Result<(), RawError> {
        self.bind()?;
        let shared = Arc::clone(&self.shared);
        let mut reserved = shared.reserved();
        for offset in (0..bytes).step_by(page as usize) {
            if let Err(error) = self.map_page(address + offset, page) {
                if offset > 0 {
                    self.unmap_range(address, offset)?;
                }
                return Err(error);
            }
        }
        let access = sys::CUmemAccessDesc {
            location: self.location(),
            flags: sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the range was mapped just now, and the description is alive.
        let allowed = unsafe { sys::cuMemSetAccess(address, bytes as usize, &raw const access, 1) };
        if let Err(error) = allowed.result() {
            self.unmap_range(address, bytes)?;
            return Err(refused(error));
        }
        let pages = (address..address + bytes).step_by(page as usize).map(|address| (address, page));
        Allocated::lock(&self.allocated).pages.extend(pages);
        *reserved += bytes;
        Ok(())
    }

    fn unmap(&mut self, address: u64, bytes: u64, _page: u64) -> Result<(), RawError> {
        self.bind()?;
        self.streams.synchronize().map_err(refused)?;
        let mut reserved = self.shared.reserved();
        self.unmap_range(address, bytes)?;
        Allocated::lock(&self.allocated).pages.retain(|page, _| !(address..address + bytes).contains(page));
        *reserved -= bytes;
        Ok(())
    }

    fn capacity(&self) -> Capacity {
        let (free, total) = self.context.mem_get_info().unwrap_or((0, 0));
        Capacity { free: free as u64, total: total as u64 }
    }

    fn record_event(&mut self, stream: Stream) -> Result<EventId, RawError> {
        self.bind()?;
        let flags = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING;
        let event = result::event::create(flags).map_err(refused)?;
        // SAFETY: event and stream are of this context and alive.
        unsafe { result::event::record(event, self.streams.find(stream)) }.map_err(refused)?;
        let id = self.next_event;
        self.next_event += 1;
        self.events.insert(id, Recorded(event));
        Ok(EventId(id))
    }

    fn event_done(&mut self, event: EventId) -> Result<bool, RawError> {
        self.bind()?;
        let Some(Recorded(handle)) = self.events.get(&event.0) else { return Ok(true) };
        // SAFETY: the event is alive until it is removed below.
        match unsafe { result::event::query(*handle) } {
            Ok(()) => self.forget(event).map(|()| true),
            Err(DriverError(sys::cudaError_enum::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(refused(error)),
        }
    }

    fn event_wait(&mut self, event: EventId) -> Result<(), RawError> {
        self.bind()?;
        if let Some(Recorded(handle)) = self.events.get(&event.0) {
            // SAFETY: the event is alive until it is removed below.
            unsafe { result::event::synchronize(*handle) }.map_err(refused)?;
        }
        self.forget(event)
    }
}

impl CudaMemory {
    fn forget(&mut self, event: EventId) -> Result<(), RawError> {
        match self.events.remove(&event.0) {
            // SAFETY: created in `record_event`, and no longer in use.
            Some(Recorded(handle)) => unsafe { result::event::destroy(handle) }.map_err(refused),
            None => Ok(()),
        }
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        // Errors cannot be handled here: the context is about to be destroyed.
        let _ = self.bind();
        let Allocated { allocations, pages } = std::mem::take(&mut *Allocated::lock(&self.allocated));
        let mut reserved = self.shared.reserved();
        for (address, bytes) in pages {
            let _ = self.unmap_range(address, bytes);
            *reserved -= bytes;
        }
        for (address, bytes) in self.ranges.drain() {
            // SAFETY: taken in `reserve`, unmapped above, freed once.
            let _ = unsafe { sys::cuMemAddressFree(address, bytes as usize) };
        }
        for (address, bytes) in allocations {
            // SAFETY: allocated in `allocate`, freed once; no buffer that uses it is left.
            let _ = unsafe { result::free_sync(address) };
            *reserved -= bytes;
        }
        for (_, Recorded(event)) in self.events.drain() {
            // SAFETY: created in `record_event`, and no longer in use.
            let _ = unsafe { result::event::destroy(event) };
        }
    }
}

/// Returns the properties of the allocator's pages.
pub(crate) fn properties(
    location: sys::CUmemLocation,
    handle_type: sys::CUmemAllocationHandleType_enum,
) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: handle_type,
        location,
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn refused(error: DriverError) -> RawError {
    if error.0 == sys::cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY {
        return RawError::OutOfMemory;
    }
    let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
    RawError::Driver { code: error.0 as i64, text: text.unwrap_or_else(|_| "unknown error".to_owned()) }
}
