//! Memory of a device that the allocator cannot use.

use config::RunConfig;
use serde::{Deserialize, Serialize};

/// Name of the part that maps pinned host memory.
const PAGE_TABLES: &str = "page_tables";

/// Bytes of a device that the allocator cannot use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Overhead {
    /// Bytes of the driver's context.
    pub context: u64,
    /// Bytes of kernels and library handles.
    pub modules: u64,
    /// Bytes that drivers and libraries load in the first step.
    pub warm_up: u64,
    /// Bytes of connections to other ranks; 0 without other ranks.
    pub communicators: u64,
    /// Keys above whose values were not measured on such a device.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub assumed: Vec<String>,
}

/// The ranks of a run, as far as drivers and libraries take device memory for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRanks {
    /// Number of ranks on the device.
    pub count: u64,
    /// Whether the ranks are connected by NCCL.
    pub connected: bool,
}

impl DeviceRanks {
    /// A rank without others.
    pub const ALONE: Self = DeviceRanks { count: 1, connected: false };
    /// A rank that is connected with others, each on a device of its own.
    pub const CONNECTED: Self = DeviceRanks { count: 1, connected: true };

    /// Returns those of a configuration, on GPUs.
    #[must_use]
    pub fn of(config: &RunConfig) -> Self {
        Self::of_world(config, config.world_size())
    }

    /// Returns those of a configuration with another number of ranks.
    pub(crate) fn of_world(config: &RunConfig, ranks: usize) -> Self {
        match config.parallel.ranks_per_device {
            _ if ranks == 1 => DeviceRanks::ALONE,
            1 => DeviceRanks::CONNECTED,
            _ => DeviceRanks { count: ranks as u64, connected: false },
        }
    }
}

/// A part of the overhead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OverheadPart {
    /// Key in description files.
    pub name: &'static str,
    /// Bytes that this part uses.
    pub bytes: u64,
    /// Whether the value was measured on such a device, rather than assumed.
    pub measured: bool,
}

impl OverheadPart {
    /// The part that maps `pinned` bytes of host memory.
    pub(crate) fn of_pinned(pinned: u64) -> Self {
        OverheadPart { name: PAGE_TABLES, bytes: device::page_table_bytes(pinned), measured: true }
    }

    /// Returns whether this part depends on the run, not on the device alone.
    pub(crate) fn is_of_pinned(&self) -> bool {
        self.name == PAGE_TABLES
    }

    /// Name of the part in sentences.
    #[must_use]
    pub fn words(&self) -> &'static str {
        match self.name {
            "modules" => "kernels",
            "warm_up" => "libraries",
            "communicators" => "connections",
            PAGE_TABLES => "page tables of pinned memory",
            name => name,
        }
    }
}

impl Overhead {
    /// Returns the parts of the overhead of a device. Ranks that share it have one context.
    pub fn parts(&self, ranks: DeviceRanks) -> Vec<OverheadPart> {
        let each = |bytes: u64| bytes.saturating_mul(ranks.count);
        let all = [
            ("context", self.context),
            ("modules", each(self.modules)),
            ("warm_up", each(self.warm_up)),
            ("communicators", if ranks.connected { self.communicators } else { 0 }),
        ];
        let part = |(name, bytes): (&'static str, u64)| OverheadPart {
            name,
            bytes,
            measured: !self.assumed.iter().any(|assumed| assumed == name),
        };
        all.into_iter().filter(|(_, bytes)| *bytes > 0).map(part).collect()
    }

    /// Returns the same values marked as assumed, for another model of device.
    pub(crate) fn elsewhere(mut self) -> Self {
        self.assumed = ["context", "modules", "warm_up", "communicators"].map(str::to_owned).to_vec();
        self
    }

    /// Sum of all parts in bytes; `None` on overflow.
    pub(crate) fn bytes(&self) -> Option<u64> {
        let parts = [self.modules, self.warm_up, self.communicators];
        parts.into_iter().try_fold(self.context, u64::checked_add)
    }
}
