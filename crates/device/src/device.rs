//! A device handle: backend, caching allocator, streams, and labels of requests.

mod served;
mod waiting;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memory::{Allocator, Category, Label, RawMemory, Statistics, Tag};
use system::numbers::hexadecimal;

use crate::buffer::Buffer;
use crate::call_log::LogState;
use crate::capture_state::CaptureState;
use crate::context::{Context, Request};
use crate::cuda::{Cuda, CudaError, Families};
use crate::description::{Backend, Description, DeviceAllocator, DeviceOptions, Kind};
use crate::error::{DeviceError, Result};
use crate::matmul::WORKSPACE_BYTES;
use crate::moment::Wait;
use crate::raw::cuda::CudaMemory;
use crate::raw::host::HostMemory;
use crate::raw::meta::{MetaMemory, PageTables};
use crate::stream::StreamKind;
pub(crate) use served::Served;

/// One rank's device. Clones are cheap and refer to the same device. Not `Send`: it belongs to its worker's
/// thread.
#[derive(Clone)]
pub struct Device(Rc<State>);

struct State {
    backend: Backend,
    // Dropped first, so that no work is running when memory and context are released.
    blas_workspace: RefCell<Option<Buffer>>,
    /// Compute-stream waits not yet collected by `take_waits`.
    waits: RefCell<Vec<Wait>>,
    cuda: Option<Cuda>,
    /// For a host pool, the device that it belongs to.
    served: Option<Served>,
    /// On Meta, bytes of this device that page tables for its pools' pinned memory take.
    page_tables: PageTables,
    /// The first error of a call that could not return it.
    deferred: RefCell<Option<DeviceError>>,
    rank: usize,
    description: Description,
    allocator: Arc<Mutex<DeviceAllocator>>,
    context: Context,
    /// FLOPs of the matmuls so far.
    flops: Cell<u64>,
    events: [Cell<u64>; StreamKind::ALL.len()],
    /// Number of waits between streams so far.
    waits_made: Cell<u64>,
    log: LogState,
    captures: CaptureState,
}

/// Optional parts of a device besides its memory: a GPU, a pool's owner, and bytes of page tables.
#[derive(Default)]
pub(crate) struct Beside {
    cuda: Option<Cuda>,
    served: Option<Served>,
    page_tables: PageTables,
}

impl Beside {
    pub(crate) fn pool_of(device: &Device) -> Self {
        Beside { served: Some(Served::by(device)), ..Beside::default() }
    }
}

/// Adds the rank and the device to the error of a failed call.
pub(crate) trait OnDevice<T> {
    fn on(self, device: &Device) -> Result<T>;
}

impl<T> OnDevice<T> for std::result::Result<T, CudaError> {
    fn on(self, device: &Device) -> Result<T> {
        self.map_err(|source| device.cuda_error(source))
    }
}

impl Device {
    /// Creates `rank`'s device on the host.
    ///
    /// # Errors
    /// Settings that the allocator refuses.
    pub fn cpu(rank: usize, options: &DeviceOptions) -> Result<Self> {
        let description = Description::host();
        let raw = Box::new(HostMemory::new(description.total_bytes));
        Self::new(Backend::Cpu, rank, description, raw, Beside::default(), options)
    }

    /// Creates `rank`'s device on GPU `ordinal`, with the kernels of `families` compiled and loaded.
    ///
    /// # Errors
    /// Settings that the allocator refuses, a driver error, kernels that do not compile.
    pub fn cuda(rank: usize, ordinal: usize, families: Families, options: &DeviceOptions) -> Result<Self> {
        let named = |source| DeviceError::Cuda { rank, device: format!("cuda:{ordinal}"), source };
        let (cuda, description) = Cuda::new(ordinal, families, options.tf32).map_err(named)?;
        let raw =
            Box::new(CudaMemory::new(&cuda.context, &cuda.streams, &cuda.ledger.shared, &cuda.allocated));
        Self::new(
            Backend::Cuda,
            rank,
            description,
            raw,
            Beside { cuda: Some(cuda), ..Beside::default() },
            options,
        )
    }

    /// Creates a device without memory that allocates and counts as a device with `description` would.
    pub fn meta(rank: usize, description: Description, options: &DeviceOptions) -> Result<Self> {
        let beside = Beside::default();
        let raw = Box::new(MetaMemory::new(&description, &beside.page_tables));
        Self::new(Backend::Meta, rank, description, raw, beside, options)
    }

    pub(crate) fn new(
        backend: Backend,
        rank: usize,
        description: Description,
        raw: Box<dyn RawMemory + Send>,
        Beside { cuda, served, page_tables }: Beside,
        options: &DeviceOptions,
    ) -> Result<Self> {
        let refused = |source| DeviceError::Settings { device: description.name.clone(), source };
        let mut allocator = Allocator::new(raw, options.settings.clone()).map_err(refused)?;
        if let Some(limit) = options.limit_bytes {
            allocator.set_limit_bytes(Some(limit));
        }
        let allocator = Arc::new(Mutex::new(allocator));
        let state = State {
            backend,
            blas_workspace: RefCell::default(),
            waits: RefCell::default(),
            cuda,
            served,
            page_tables,
            deferred: RefCell::default(),
            rank,
            description,
            allocator,
            context: Context::default(),
            flops: Cell::new(0),
            events: Default::default(),
            waits_made: Cell::new(0),
            log: LogState::default(),
            captures: CaptureState::default(),
        };
        let device = Device(Rc::new(state));
        if device.is_cuda_like() {
            let request = Request::new(Category::Workspace, "blas");
            *device.0.blas_workspace.borrow_mut() = Some(device.allocate(WORKSPACE_BYTES, request)?);
        }
        Ok(device)
    }

    /// Returns, on Meta, the bytes of this device that page tables for its pools' pinned memory take.
    pub(crate) fn page_tables(&self) -> &PageTables {
        &self.0.page_tables
    }

    /// Returns the backend whose calls operators make. While a Meta device logs calls, this is a GPU's
    /// backend.
    pub fn backend(&self) -> Backend {
        self.calls_of(self.0.backend)
    }

    /// Returns whether operators allocate but compute nothing.
    pub fn is_meta(&self) -> bool {
        self.0.backend == Backend::Meta
    }

    /// Returns whether calls take workspaces: on a GPU, and on a Meta device that imitates one.
    pub fn is_cuda_like(&self) -> bool {
        self.0.description.kind == Kind::Cuda
    }

    /// Returns whether `other` is a handle of this device.
    pub fn is(&self, other: &Device) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the rank that owns the device.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// Returns the description.
    pub fn description(&self) -> &Description {
        &self.0.description
    }

    /// Allocates `bytes` from the caching allocator; 0 bytes give a null buffer without an allocation.
    pub fn allocate(&self, bytes: usize, request: Request) -> Result<Buffer> {
        let tag = Tag {
            category: request.category,
            module: self.0.context.module.get(),
            operator: request.operator,
            step: self.0.context.step.get(),
        };
        if bytes == 0 {
            return Ok(Buffer::null(self.0.backend));
        }
        let taken = self.allocator().allocate(bytes as u64, request.stream.handle(), tag);
        match taken {
            Ok(taken) => Ok(Buffer::new(Arc::clone(&self.0.allocator), self.0.backend, taken, bytes)),
            Err(source) => Err(DeviceError::Allocation {
                rank: self.0.rank,
                device: self.0.description.name.clone(),
                operator: request.operator,
                bytes: bytes as u64,
                source,
            }),
        }
    }

    /// Returns the identifier of a GPU in NVIDIA's tools, such as `GPU-8f6c…`; `None` for other devices, or
    /// if the driver does not report it.
    pub fn uuid(&self) -> Option<String> {
        let bytes = self.gpu()?.context.uuid().ok()?.bytes;
        let digits = hexadecimal(&bytes.map(|byte| byte as u8));
        let part = |range: std::ops::Range<usize>| digits.get(range).unwrap_or_default();
        let parts = [part(0..8), part(8..12), part(12..16), part(16..20), part(20..32)];
        Some(format!("GPU-{}", parts.join("-")))
    }

    /// Returns the allocator's current counters.
    pub fn statistics(&self) -> Statistics {
        self.allocator().statistics().clone()
    }

    /// Passes the caching allocator to `body`, for snapshots, history and settings. The allocator is locked
    /// during the call: an allocation inside `body` would deadlock.
    pub fn with_allocator<T>(&self, body: impl FnOnce(&mut DeviceAllocatorHandle) -> T) -> T {
        body(&mut DeviceAllocatorHandle(self.allocator()))
    }

    /// Returns all idle segments to the driver.
    pub fn empty_cache(&self) -> Result<()> {
        let refused = |source| DeviceError::Settings { device: self.0.description.name.clone(), source };
        self.allocator().empty_cache().map_err(refused)
    }

    /// Returns the module that currently labels allocations.
    pub fn current_module(&self) -> Label {
        self.0.context.module.get()
    }

    /// Returns the step that currently labels allocations.
    pub fn step(&self) -> u32 {
        self.0.context.step.get()
    }

    /// Sets the step that labels allocations from now on.
    pub fn set_step(&self, step: u32) {
        self.0.context.step.set(step);
    }

    /// Adds FLOPs to the device's count.
    pub fn count_flops(&self, flops: u64) {
        self.0.flops.set(self.0.flops.get().saturating_add(flops));
    }

    /// Resets the count of FLOPs to `before`, because the calls since then are made again.
    pub fn take_back_flops(&self, before: u64) {
        self.0.flops.set(before);
    }

    /// Returns the FLOPs of all matmuls and attention calls so far, computed from their operands' sizes.
    pub fn flops(&self) -> u64 {
        self.0.flops.get()
    }

    pub(crate) fn gpu(&self) -> Option<&Cuda> {
        self.0.cuda.as_ref()
    }

    /// Returns the GPU, for enqueueing work; `None` if the device is not a GPU.
    ///
    /// # Errors
    /// An earlier error that could not be returned at once.
    pub(crate) fn gpu_to_use(&self) -> Result<Option<&Cuda>> {
        self.0.deferred.take().map_or(Ok(self.gpu()), Err)
    }

    /// Stores an error until [`Device::gpu_to_use`] returns it. A later error is dropped while one is stored.
    pub(crate) fn defer(&self, error: DeviceError) {
        self.0.deferred.borrow_mut().get_or_insert(error);
    }

    pub(crate) fn waits(&self) -> &RefCell<Vec<Wait>> {
        &self.0.waits
    }

    pub(crate) fn gpu_or_refuse(&self, call: &'static str) -> Result<&Cuda> {
        self.gpu_to_use()?
            .ok_or_else(|| DeviceError::NotOnGpu { call, device: self.0.description.name.clone() })
    }

    /// Adds the rank and the device to an error of CUDA.
    pub(crate) fn cuda_error(&self, source: CudaError) -> DeviceError {
        DeviceError::Cuda { rank: self.0.rank, device: self.0.description.name.clone(), source }
    }

    pub(crate) fn captures(&self) -> &CaptureState {
        &self.0.captures
    }

    pub(crate) fn call_log(&self) -> &LogState {
        &self.0.log
    }

    /// Calls `body` with the address of cuBLASLt's workspace, or 0 without one.
    pub(crate) fn with_blas_workspace<T>(&self, body: impl FnOnce(u64) -> T) -> T {
        body(self.0.blas_workspace.borrow().as_ref().map_or(0, Buffer::address))
    }

    pub(crate) fn context(&self) -> &Context {
        &self.0.context
    }

    /// Returns the label of module `name` inside `outer`.
    pub(crate) fn intern_inside(&self, outer: Label, name: &str) -> Label {
        let mut allocator = self.allocator();
        let labels = allocator.labels_mut();
        let path = match labels.name(outer) {
            "" => return labels.intern(name),
            outer => format!("{outer}.{name}"),
        };
        labels.intern(&path)
    }

    fn allocator(&self) -> MutexGuard<'_, DeviceAllocator> {
        // The allocator does not panic inside its calls, so a poisoned lock still guards correct counters.
        self.0.allocator.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // Memory to which copies may never end, because another rank is lost, is not freed: the driver would
        // wait.
        if self.served.as_ref().is_some_and(Served::is_filling) {
            std::mem::forget(Arc::clone(&self.allocator));
        }
        // Running work still uses memory that is about to be released.
        if let Some(cuda) = &self.cuda {
            let _ = cuda.context.bind_to_thread();
            // A guard ends waits for work that will never finish.
            for stream in StreamKind::ALL {
                let _ = cuda.events.record(cuda.streams.handle(stream)).and_then(|point| point.wait());
            }
        }
    }
}

/// The locked allocator that [`Device::with_allocator`] passes to its callback.
pub struct DeviceAllocatorHandle<'a>(MutexGuard<'a, DeviceAllocator>);

impl std::ops::Deref for DeviceAllocatorHandle<'_> {
    type Target = DeviceAllocator;
    fn deref(&self) -> &DeviceAllocator {
        &self.0
    }
}

impl std::ops::DerefMut for DeviceAllocatorHandle<'_> {
    fn deref_mut(&mut self) -> &mut DeviceAllocator {
        &mut self.0
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} device of rank {}", self.0.backend, self.0.rank)
    }
}
