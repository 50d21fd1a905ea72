//! NVIDIA GPUs: a context shared by the ranks of a process, six streams, loaded kernels, cuBLASLt, cuDNN, and
//! host memory for copies.
//!
//! The libraries are opened at run time, so the program builds and starts without them.
#![allow(unsafe_code)] // driver queries about a device

pub(crate) mod account;
mod argument;
mod availability;
mod blas;
mod choice;
mod compile;
mod convolution;
mod copy;
mod dnn;
mod dnn_choice;
mod dnn_epilogue;
pub(crate) mod error;
mod gates;
pub(crate) mod graph;
mod handles;
mod launch;
mod ledger;
mod matmul;
mod modules;
mod pinned;
mod profile;
mod reach;
mod share;
mod signals;
mod staging;
pub(crate) mod stream_launch;
mod stream_signals;
pub(crate) mod streams;
mod tensor_map;
mod timing;

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use cudarc::driver::{CudaContext, result, sys};

pub use availability::{GpuInfo, Unavailable, availability, has_convolutions};
pub use choice::PlannedMatmul;
pub use compile::{CACHE_VARIABLE, architecture, compile, compiler_is_there, user_cache};
pub use error::CudaError;
pub use launch::{Launch, Operand};
pub use ledger::Ledger;
pub use modules::{Families, Progress};
pub(crate) use pinned::{Pinned, PinnedCopy};
pub use profile::TimedCall;
pub use reach::{PageSource, PeerAddress, PeerMemory};
pub use share::{Extent, Page};
pub use signals::{SignalPage, Word};
pub(crate) use staging::{FETCH_BYTES, Fetch};
pub use staging::{STAGED_BLOCK_BYTES, STAGED_BYTES};
pub use streams::WaitGuard;
pub(crate) use streams::{Point, SharedPoint, Streams};
pub use tensor_map::Boxes;

pub use crate::work::Work;

use crate::description::{Description, Kind};
use crate::raw::cuda::Allocated;
pub(crate) use error::Named;
use error::Result;
use streams::EventPool;

/// A GPU device without its allocator.
pub(crate) struct Cuda {
    // Fields are dropped in this order: users of the context before the context.
    pub(crate) profile: RefCell<Option<Rc<timing::Profile>>>,
    pub(crate) staging: RefCell<staging::Staging>,
    pub(crate) fetches: Rc<staging::Fetches>,
    pub(crate) modules: RefCell<modules::Modules>,
    pub(crate) blas: blas::Blas,
    convolution_epilogues: dnn_epilogue::EpiloguePlans,
    /// cuDNN, opened at the first convolution.
    dnn: OnceCell<dnn::Dnn>,
    pub(crate) events: Rc<EventPool>,
    pub(crate) marks: Rc<EventPool>,
    pub(crate) streams: Arc<Streams>,
    pub(crate) ledger: account::Start,
    /// Memory that the driver has provided to the allocator.
    pub(crate) allocated: Arc<Mutex<Allocated>>,
    pub(crate) context: Arc<CudaContext>,
}

impl Cuda {
    /// Creates the context of GPU `ordinal` and loads the kernels of `families`. With `tf32`, f32 matmuls
    /// round their operands to TF32.
    pub(crate) fn new(ordinal: usize, families: Families, tf32: bool) -> Result<(Self, Description)> {
        let context = CudaContext::new(ordinal).named("cuDevicePrimaryCtxRetain")?;
        let shared = account::GpuUse::measure_gpu(ordinal, &context)?;
        let events = EventPool::new(&context, false);
        let marks = EventPool::new(&context, true);
        let description = describe(ordinal)?;
        let load = || {
            let streams = Arc::new(Streams::new(&context)?);
            let modules =
                modules::Modules::load(&context, families, &architecture(description.compute_capability))?;
            let blas = blas::Blas::new(ordinal, &description.model, tf32)?;
            let staging = staging::Staging::new(&context, &events)?;
            Ok((streams, modules, blas, staging, staging::Fetches::new(&context, &events)?))
        };
        let (loaded, ledger) = account::Start::measure(&shared, &context, load)?;
        let (streams, modules, blas, staging, fetches) = loaded;
        let cuda = Cuda {
            profile: RefCell::default(),
            staging: RefCell::new(staging),
            fetches,
            modules: RefCell::new(modules),
            blas,
            convolution_epilogues: Default::default(),
            dnn: OnceCell::new(),
            events,
            marks,
            streams,
            ledger,
            allocated: Arc::default(),
            context,
        };
        Ok((cuda, description))
    }
}

/// Describes GPU `ordinal` without creating a context.
pub fn describe(ordinal: usize) -> std::result::Result<Description, CudaError> {
    use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;
    result::init().named("cuInit")?;
    let device = result::device::get(i32::try_from(ordinal).unwrap_or(i32::MAX)).named("cuDeviceGet")?;
    let number = |which| {
        // SAFETY: the driver returned the device above.
        let value = unsafe { result::device::get_attribute(device, which) }.named("cuDeviceGetAttribute")?;
        Ok(u32::try_from(value).unwrap_or(0))
    };
    let model = result::device::get_name(device).named("cuDeviceGetName")?;
    // SAFETY: the driver returned the device above.
    let total_bytes = unsafe { result::device::total_mem(device) }.named("cuDeviceTotalMem")? as u64;
    let driver = availability::driver_version();
    let (nvrtc_major, nvrtc_minor) = compile::compiler_version();
    Ok(Description {
        kind: Kind::Cuda,
        name: format!("cuda:{ordinal}"),
        model,
        total_bytes,
        taken_bytes: 0,
        granularity: granularity(ordinal),
        compute_capability: (
            number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        peers: 0,
        libraries: format!(
            "driver {}.{}, NVRTC {nvrtc_major}.{nvrtc_minor}, cuBLASLt {}",
            driver / 1000,
            driver % 1000 / 10,
            blas::version()
        ),
    })
}

/// Returns the driver's allocation granularity on GPU `ordinal` in bytes. If the driver does not report it,
/// returns 2 MiB, the value on all GPUs so far.
fn granularity(ordinal: usize) -> u64 {
    let location = sys::CUmemLocation {
        type_: sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE,
        id: i32::try_from(ordinal).unwrap_or(i32::MAX),
    };
    let mut bytes = 0;
    let which = sys::CUmemAllocationGranularity_flags_enum::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let properties = crate::raw::cuda::properties(location, sys::CUmemAllocationHandleType_enum(0));
    // SAFETY: both pointers refer to live values.
    let asked = unsafe { sys::cuMemGetAllocationGranularity(&raw mut bytes, &raw const properties, which) };
    if asked.result().is_ok() && bytes > 0 { bytes as u64 } else { 2 << 20 }
}

/// Compiles the kernels of `families` for GPU `ordinal` unless they are cached. `progress` receives the
/// number of finished modules and their total. Devices created later in this process use the result.
///
/// # Errors
/// No such GPU, the compiler's log.
pub fn prepare_kernels(
    ordinal: usize,
    families: Families,
    progress: &Progress<'_>,
) -> std::result::Result<(), CudaError> {
    modules::images(families, &architecture(describe(ordinal)?.compute_capability), progress).map(drop)
}
