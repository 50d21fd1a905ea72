//! Memory of a device that the allocator cannot use.

use config::RunConfig;
use serde::{Deserialize, Serialize};

/// Name of the page tables for pinned host memory.
const PAGE_TABLES: &str = "page_tables";

/// Bytes of a device that the allocator cannot use, by cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Overhead {
    /// Bytes of the driver's context.
    pub context: u64,
    /// Bytes of loaded kernels and library handles.
    pub modules: u64,
    /// Bytes that drivers and libraries allocate in the first step.
    pub warm_up: u64,
    /// Bytes of connections to other ranks; 0 for a single rank.
    pub communicators: u64,
    /// Names of the fields above that were assumed, not measured on such a device.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub assumed: Vec<String>,
}

/// The ranks for which drivers and libraries allocate device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRanks {
    /// Number of ranks on the device.
    pub count: u64,
    /// Whether the ranks are connected by NCCL.
    pub connected: bool,
}

impl DeviceRanks {
    /// A single rank.
    pub const ALONE: Self = DeviceRanks { count: 1, connected: false };
    /// A rank connected to others, each on its own device.
    pub const CONNECTED: Self = DeviceRanks { count: 1, connected: true };

    /// Returns the ranks on each device of a configuration, for GPUs.
    #[must_use]
    pub fn from_config(config: &RunConfig) -> Self {
        Self::of_world(config, config.world_size())
    }

    /// Returns the ranks on each device of a configuration with a different world size.
    pub(crate) fn of_world(config: &RunConfig, ranks: usize) -> Self {
        match config.parallel.ranks_per_device {
            _ if ranks == 1 => DeviceRanks::ALONE,
            1 => DeviceRanks::CONNECTED,
            _ => DeviceRanks { count: ranks as u64, connected: false },
        }
    }
}

/// One cause of overhead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OverheadPart {
    /// Key in description files.
    pub name: &'static str,
    /// Bytes that it takes.
    pub bytes: u64,
    /// Whether the value was measured on such a device rather than assumed.
    pub measured: bool,
}

impl OverheadPart {
    /// Returns the page tables for `pinned` bytes of pinned host memory.
    pub(crate) fn of_pinned(pinned: u64) -> Self {
        OverheadPart { name: PAGE_TABLES, bytes: device::page_table_bytes(pinned), measured: true }
    }

    /// Returns whether this part depends on the run, not only on the device.
    pub(crate) fn is_of_pinned(&self) -> bool {
        self.name == PAGE_TABLES
    }

    /// Returns the name of the part in sentences.
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
    /// Returns the parts of a device's overhead. Ranks that share a device share one context.
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

    /// Returns the same values marked as assumed, for a different device model.
    pub(crate) fn elsewhere(mut self) -> Self {
        self.assumed = ["context", "modules", "warm_up", "communicators"].map(str::to_owned).to_vec();
        self
    }

    /// Returns the sum of all parts in bytes; `None` on overflow.
    pub(crate) fn bytes(&self) -> Option<u64> {
        let parts = [self.modules, self.warm_up, self.communicators];
        parts.into_iter().try_fold(self.context, u64::checked_add)
    }
}
