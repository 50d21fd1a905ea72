//! Descriptions of devices: backend, hardware, and options of allocator and matmuls.

use std::sync::OnceLock;

use memory::{Allocator, RawMemory, Settings};

use crate::host::HostCapacity;
use crate::host::PAGE;
use crate::raw::host::processor_model;

/// The caching allocator over the backend's driver.
pub(crate) type DeviceAllocator = Allocator<Box<dyn RawMemory + Send>>;

system::names! {
    /// The backend of a device.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Backend {
        /// Host memory and host threads.
        Cpu = "cpu",
        /// An NVIDIA GPU.
        Cuda = "cuda",
        /// No memory: allocations are counted, operators compute nothing.
        Meta = "meta",
    }
}

system::names! {
    /// Kind of hardware.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Kind {
        /// A host.
        Cpu = "cpu",
        /// An NVIDIA GPU, whose operators take workspaces.
        Cuda = "cuda",
    }
}

/// Description of a device, which Meta can imitate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The kind of hardware.
    pub kind: Kind,
    /// Name shown in tables and messages.
    pub name: String,
    /// Model of the hardware. Equal bits are promised only on one model.
    pub model: String,
    /// Capacity of the device in bytes.
    pub total_bytes: u64,
    /// Bytes that Meta's allocator cannot use: context, kernels, libraries, connections to other ranks. 0 for
    /// a real device, whose driver reports its free memory.
    pub taken_bytes: u64,
    /// Granularity of the driver's allocations, in bytes.
    pub granularity: u64,
    /// A GPU's compute capability, major and minor; 0 for a host.
    pub compute_capability: (u32, u32),
    /// A GPU's number of multiprocessors; 0 for a host.
    pub multiprocessors: u32,
    /// Number of GPUs of an imitated host that can access each other's memory; 0 for a real device, whose
    /// driver is queried.
    pub peers: usize,
    /// Versions of the libraries that compute. Equal bits are promised only for equal versions.
    pub libraries: String,
}

impl Description {
    /// Describes this host as a CPU device.
    pub fn host() -> Self {
        // Read once: what the system says of itself stays.
        static HOST: OnceLock<Description> = OnceLock::new();
        HOST.get_or_init(Self::read_host).clone()
    }

    fn read_host() -> Self {
        Description {
            kind: Kind::Cpu,
            name: "cpu".to_owned(),
            model: processor_model(),
            total_bytes: HostCapacity::of_process().bytes,
            taken_bytes: 0,
            granularity: PAGE,
            compute_capability: (0, 0),
            multiprocessors: 0,
            peers: 0,
            libraries: String::new(),
        }
    }
}

/// Options of a device's allocator and matmuls.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// The caching allocator's settings.
    pub settings: Settings,
    /// Maximum bytes to take from the driver; `None`: the whole device.
    pub limit_bytes: Option<u64>,
    /// Whether a GPU with TF32 rounds the operands of f32 matmuls to it.
    pub tf32: bool,
}
