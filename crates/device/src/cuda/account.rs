//! The driver's memory usage, measured when a device is created, and summed over the ranks of this process on
//! one GPU.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use cudarc::driver::CudaContext;

use super::error::{Named, Result};

/// Memory of one rank outside its allocator, in bytes.
#[derive(Debug)]
pub(crate) struct Start {
    /// Memory usage that this rank shares with other ranks of the process on the GPU.
    pub(crate) shared: Arc<GpuUse>,
    /// Bytes that loading kernels and library handles took.
    modules: u64,
    /// Bytes that communication libraries took.
    pub(crate) communicators: Cell<u64>,
}

impl Start {
    /// Runs `load`, which loads kernels and creates handles, and measures the memory that it takes. Ranks on
    /// one GPU load one after another.
    pub(crate) fn measure<T>(
        shared: &Arc<GpuUse>,
        context: &CudaContext,
        load: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Self)> {
        let _alone = shared.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let before = shared.outside(context)?;
        let loaded = load()?;
        let modules = shared.outside(context)?.saturating_sub(before);
        shared.modules.fetch_add(modules, Ordering::SeqCst);
        shared.ranks.fetch_add(1, Ordering::SeqCst);
        let shared = Arc::clone(shared);
        Ok((loaded, Start { shared, modules, communicators: Cell::new(0) }))
    }
}

impl Drop for Start {
    fn drop(&mut self) {
        self.shared.modules.fetch_sub(self.modules, Ordering::SeqCst);
        self.shared.ranks.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Memory usage of all ranks of this process on one GPU.
#[derive(Debug)]
pub(crate) struct GpuUse {
    ordinal: usize,
    /// Bytes used when the process's context was created, by the context and by other processes.
    pub(crate) context: u64,
    /// Bytes that loading kernels and library handles took, for all ranks.
    pub(crate) modules: AtomicU64,
    /// Bytes that the driver has provided to the allocators of all ranks. Locked while a rank requests memory
    /// from the driver.
    reserved: Mutex<u64>,
    pub(crate) ranks: AtomicU64,
    /// Lock held by the rank that loads its kernels.
    loading: Mutex<()>,
}

static GPUS: Mutex<Vec<Weak<GpuUse>>> = Mutex::new(Vec::new());

impl GpuUse {
    /// Returns the usage of GPU `ordinal`, whose context exists. The first rank on it measures before any
    /// rank loads kernels.
    pub(crate) fn measure_gpu(ordinal: usize, context: &CudaContext) -> Result<Arc<Self>> {
        // An entry is complete when it is added, so a poisoned lock still guards correct ones.
        let mut gpus = GPUS.lock().unwrap_or_else(PoisonError::into_inner);
        gpus.retain(|gpu| gpu.strong_count() > 0);
        let gpu = gpus.iter().filter_map(Weak::upgrade).find(|gpu| gpu.ordinal == ordinal);
        if let Some(gpu) = gpu {
            return Ok(gpu);
        }
        let new = Arc::new(GpuUse {
            ordinal,
            context: used(context)?,
            modules: AtomicU64::new(0),
            reserved: Mutex::new(0),
            ranks: AtomicU64::new(0),
            loading: Mutex::new(()),
        });
        gpus.push(Arc::downgrade(&new));
        Ok(new)
    }

    /// Locks the bytes that the driver has provided to allocators, for changing them together with the
    /// driver's count or reading both consistently.
    pub(crate) fn reserved(&self) -> MutexGuard<'_, u64> {
        // It is changed in one assignment, so a poisoned lock still guards a correct number.
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the bytes used on the GPU, and the bytes reserved by the allocators of this process's ranks.
    pub(crate) fn read(&self, context: &CudaContext) -> Result<(u64, u64)> {
        let reserved = self.reserved();
        Ok((used(context)?, *reserved))
    }

    /// Returns the bytes used on the GPU outside the allocators of this process's ranks.
    fn outside(&self, context: &CudaContext) -> Result<u64> {
        let (used, reserved) = self.read(context)?;
        Ok(used.saturating_sub(reserved))
    }
}

/// Returns the bytes in use on the device of a context.
fn used(context: &CudaContext) -> Result<u64> {
    let (free, total) = context.mem_get_info().named("cuMemGetInfo")?;
    Ok((total - free) as u64)
}
