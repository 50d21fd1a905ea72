//! Memory of a device that the allocator cannot use.

use serde::{Deserialize, Serialize};

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

/// A part of the overhead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverheadPart {
    /// Key in description files.
    pub name: &'static str,
    /// Bytes that this part uses.
    pub bytes: u64,
    /// Whether the value was measured on such a device, rather than assumed.
    pub measured: bool,
}

impl OverheadPart {
    /// Name of the part in sentences.
    #[must_use]
    pub fn words(&self) -> &'static str {
        match self.name {
            "modules" => "kernels",
            "warm_up" => "libraries",
            "communicators" => "connections",
            name => name,
        }
    }
}

impl Overhead {
    /// Returns the parts of a rank's overhead; `connected` tells whether there are other ranks.
    pub fn parts(&self, connected: bool) -> Vec<OverheadPart> {
        let all = [
            ("context", self.context),
            ("modules", self.modules),
            ("warm_up", self.warm_up),
            ("communicators", if connected { self.communicators } else { 0 }),
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
