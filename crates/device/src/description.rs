//! The description of a device: its backend, its hardware, and the options of its allocator.

use memory::{Allocator, RawMemory, Settings};

use crate::raw::host::{PAGE, physical_memory, processor_model};

/// The allocator over whichever driver the backend has.
pub(crate) type DeviceAllocator = Allocator<Box<dyn RawMemory + Send>>;

/// The backend of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Host memory and host threads.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// Nothing: allocations are counted, operators compute nothing.
    Meta,
}

impl Backend {
    /// Name in files and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Backend::Cpu => "cpu",
            Backend::Cuda => "cuda",
            Backend::Meta => "meta",
        }
    }
}

/// The sort of hardware that a description is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A host.
    Cpu,
    /// An NVIDIA GPU: calls take workspaces there.
    Cuda,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 2] = [Kind::Cpu, Kind::Cuda];

    /// Name in files and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Cpu => "cpu",
            Kind::Cuda => "cuda",
        }
    }
}

/// The description of a device; Meta imitates one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The sort of hardware.
    pub kind: Kind,
    /// Name for tables and messages.
    pub name: String,
    /// The model of the hardware: bits are promised on one model alone.
    pub model: String,
    /// Bytes that the device has in all.
    pub total_bytes: u64,
    /// Bytes of those that Meta's allocator does not get: context, kernels, libraries, connections to other
    /// ranks. 0 of a device that is there, whose driver knows by itself.
    pub taken_bytes: u64,
    /// Granularity of the driver's memory, in bytes.
    pub granularity: u64,
    /// A GPU's compute capability, major and minor; 0 of a host.
    pub compute_capability: (u32, u32),
    /// A GPU's multiprocessors; 0 of a host.
    pub multiprocessors: u32,
    /// Versions of what computes on it: bits are promised for one set of them.
    pub libraries: String,
}

impl Description {
    /// This host as a CPU device.
    pub fn host() -> Self {
        Description {
            kind: Kind::Cpu,
            name: "cpu".to_owned(),
            model: processor_model(),
            total_bytes: physical_memory(),
            taken_bytes: 0,
            granularity: PAGE,
            compute_capability: (0, 0),
            multiprocessors: 0,
            libraries: String::new(),
        }
    }
}

/// Options of a device's allocator.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// The caching allocator's settings.
    pub settings: Settings,
    /// At most this many bytes from the driver; `None`: all of the device.
    pub limit_bytes: Option<u64>,
}
