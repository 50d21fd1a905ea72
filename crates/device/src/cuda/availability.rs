//! Detection of GPUs, and the reason if there are none.
#![allow(unsafe_code)] // checking for a shared library opens it

use cudarc::driver::{result, sys};

use super::error::Named;

/// Minimum CUDA version of the driver, in its notation: 1000 · major + 10 · minor.
const NEEDED_VERSION: i32 = 13_000;

/// A GPU that this process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// Index among this process's GPUs, after `CUDA_VISIBLE_DEVICES` was applied.
    pub ordinal: usize,
    /// Name of the GPU.
    pub name: String,
}

/// Reason why no GPU is usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The driver's library is missing.
    #[error("there is no NVIDIA driver (libcuda cannot be opened)")]
    NoDriver,
    /// The driver is older than the calls that the program makes.
    #[error("the NVIDIA driver supports CUDA {}.{}, and {}.{} is needed: update the driver", have / 1000, have % 1000 / 10, needed / 1000, needed % 1000 / 10)]
    OldDriver {
        /// Supported CUDA version, as 1000 · major + 10 · minor.
        have: i32,
        /// Required CUDA version, as 1000 · major + 10 · minor.
        needed: i32,
    },
    /// The driver finds no GPU.
    #[error("the NVIDIA driver finds no GPU{}", hidden(.visible.as_deref()))]
    NoDevice {
        /// Value of `CUDA_VISIBLE_DEVICES`, if set.
        visible: Option<String>,
    },
    /// A library that kernels or matmuls need is missing.
    #[error("{library} cannot be opened: install the CUDA {major} run-time libraries or set LD_LIBRARY_PATH", major = NEEDED_VERSION / 1000)]
    NoLibrary {
        /// File name of the library.
        library: &'static str,
    },
    /// The driver returned an error.
    #[error("the NVIDIA driver does not start: {0}")]
    Refused(String),
}

fn hidden(visible: Option<&str>) -> String {
    visible.map(|value| format!(": CUDA_VISIBLE_DEVICES is \"{value}\"")).unwrap_or_default()
}

/// Returns the GPUs that this process may use, at least one. Creates no context.
pub fn availability() -> Result<Vec<GpuInfo>, Unavailable> {
    // SAFETY: opening the driver's library runs its initialisers, which is what they are for.
    if !unsafe { sys::is_culib_present() } {
        return Err(Unavailable::NoDriver);
    }
    let refused = |error: result::DriverError| match error.0 {
        sys::cudaError_enum::CUDA_ERROR_NO_DEVICE => none(),
        _ => Unavailable::Refused(error.to_string()),
    };
    let have = driver_version();
    if have < NEEDED_VERSION {
        return Err(Unavailable::OldDriver { have, needed: NEEDED_VERSION });
    }
    result::init().map_err(refused)?;
    let count = usize::try_from(result::device::get_count().map_err(refused)?).unwrap_or(0);
    if count == 0 {
        return Err(none());
    }
    libraries()?;
    let gpu = |ordinal: usize| {
        let device = result::device::get(ordinal as i32).map_err(refused)?;
        Ok(GpuInfo { ordinal, name: result::device::get_name(device).map_err(refused)? })
    };
    (0..count).map(gpu).collect()
}

fn none() -> Unavailable {
    Unavailable::NoDevice { visible: std::env::var("CUDA_VISIBLE_DEVICES").ok() }
}

fn libraries() -> Result<(), Unavailable> {
    // SAFETY: as for the driver's library.
    let compiler = unsafe { cudarc::nvrtc::sys::is_culib_present() };
    // SAFETY: likewise.
    let matmuls = unsafe { cudarc::cublaslt::sys::is_culib_present() };
    match (compiler, matmuls) {
        (false, _) => Err(Unavailable::NoLibrary { library: "libnvrtc.so" }),
        (_, false) => Err(Unavailable::NoLibrary { library: "libcublasLt.so" }),
        (true, true) => Ok(()),
    }
}

/// Returns whether cuDNN, which convolutions need, can be opened.
pub fn has_convolutions() -> bool {
    // SAFETY: opening the library runs its initialisers, which is what they are for.
    unsafe { cudarc::cudnn::sys::is_culib_present() }
}

/// Returns the number of GPUs on which this process has an active primary context.
pub(crate) fn contexts() -> super::error::Result<u64> {
    let count = result::device::get_count().named("cuDeviceGetCount")?;
    let mut contexts = 0;
    for ordinal in 0..count {
        let device = result::device::get(ordinal).named("cuDeviceGet")?;
        let (mut flags, mut active) = (0, 0);
        // SAFETY: the driver returned the device just now, and the call writes two integers.
        unsafe { sys::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) }
            .result()
            .named("cuDevicePrimaryCtxGetState")?;
        contexts += u64::from(active != 0);
    }
    Ok(contexts)
}

/// Returns the driver's CUDA version as 1000 · major + 10 · minor; 0 if unknown. Needs the driver's library.
pub(crate) fn driver_version() -> i32 {
    let mut version = 0;
    // SAFETY: the driver's library is there, and the call writes one integer, also before initialisation.
    let status = unsafe { sys::cuDriverGetVersion(&raw mut version) };
    if status == sys::cudaError_enum::CUDA_SUCCESS { version } else { 0 }
}
