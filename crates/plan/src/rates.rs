//! Rates of a device.

use serde::{Deserialize, Serialize};

/// Rates of a device, for predicted times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceRates {
    /// FLOP/s of large matmuls in bf16.
    pub flops_bf16: f64,
    /// FLOP/s of large matmuls in f32.
    pub flops_f32: f64,
    /// Bytes per second, read plus written, of a large copy on the device.
    pub memory_bytes: f64,
    /// Bytes per second that a rank sends to other ranks of its host.
    pub link_bytes: f64,
    /// Bytes per second that a rank sends to ranks of other hosts: `bytes` of `[network]`.
    #[serde(skip)]
    pub network_bytes: Option<f64>,
    /// FLOP/s of large matmuls in TF32; `None`: half those in bf16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flops_tf32: Option<f64>,
    /// FLOP/s of large matmuls in FP8; `None`: twice those in bf16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flops_fp8: Option<f64>,
    /// Seconds of the host for a launch, with the work of the operator around it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch_seconds: Option<f64>,
    /// Seconds of a kernel that does nothing, with the pause before the next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_seconds: Option<f64>,
    /// Seconds of the host for the mark and the launch of a CUDA graph at the beginning of each part of a
    /// step that is replayed, and for the graph before each call between ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph_seconds: Option<f64>,
    /// Seconds by which a call of a CUDA graph follows the one before it sooner than without a graph; `None`:
    /// 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph_gain_seconds: Option<f64>,
    /// Bytes per second of copies between a device and pinned memory, in each of both directions at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_copy_bytes: Option<f64>,
    /// Seconds of the shortest message between ranks of a host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_seconds: Option<f64>,
    /// Seconds of the shortest message between ranks of different hosts: `seconds` of `[network]`.
    #[serde(skip)]
    pub network_seconds: Option<f64>,
    /// Keys above whose values were not measured on such a device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assumed: Vec<String>,
}

impl DeviceRates {
    /// FLOP/s of large matmuls in TF32.
    #[must_use]
    pub fn tf32(&self) -> f64 {
        self.flops_tf32.unwrap_or(self.flops_bf16 / 2.0)
    }

    /// FLOP/s of large matmuls in FP8.
    #[must_use]
    pub fn fp8(&self) -> f64 {
        self.flops_fp8.unwrap_or(2.0 * self.flops_bf16)
    }

    /// Seconds of the host for a launch.
    #[must_use]
    pub fn launch(&self) -> f64 {
        self.launch_seconds.unwrap_or(4e-6)
    }

    /// Seconds of a kernel that does nothing.
    #[must_use]
    pub fn kernel(&self) -> f64 {
        self.kernel_seconds.unwrap_or(3e-6)
    }

    /// Seconds of the host for a CUDA graph of a replayed step.
    #[must_use]
    pub fn graph(&self) -> f64 {
        self.graph_seconds.unwrap_or(10e-6)
    }

    /// Bytes per second of copies from the host.
    #[must_use]
    pub fn host_copy(&self) -> f64 {
        self.host_copy_bytes.unwrap_or(20e9)
    }

    /// Bytes per second that a rank sends to ranks of other hosts.
    #[must_use]
    pub fn network(&self) -> f64 {
        self.network_bytes.unwrap_or(self.link_bytes)
    }

    /// Seconds of the shortest message to a rank of this host, or of another one.
    #[must_use]
    pub fn message(&self, is_far: bool) -> f64 {
        match is_far {
            true => self.network_seconds.unwrap_or(20e-6),
            false => self.link_seconds.unwrap_or(10e-6),
        }
    }

    /// All rates, which must be above 0.
    pub(crate) fn all(&self) -> impl Iterator<Item = f64> {
        let required = [self.flops_bf16, self.flops_f32, self.memory_bytes, self.link_bytes];
        required.into_iter().chain(self.optional().into_iter().filter_map(|(_, rate)| rate))
    }

    /// Keys of rates that a file may omit and this one does, with the values assumed for them.
    pub(crate) fn omitted(&self) -> Vec<&'static str> {
        self.optional().into_iter().filter(|(_, value)| value.is_none()).map(|(key, _)| key).collect()
    }

    /// Keys and values of the rates that a description may omit.
    fn optional(&self) -> [(&'static str, Option<f64>); 8] {
        [
            ("flops_tf32", self.flops_tf32),
            ("flops_fp8", self.flops_fp8),
            ("launch_seconds", self.launch_seconds),
            ("kernel_seconds", self.kernel_seconds),
            ("graph_seconds", self.graph_seconds),
            ("graph_gain_seconds", self.graph_gain_seconds),
            ("host_copy_bytes", self.host_copy_bytes),
            ("link_seconds", self.link_seconds),
        ]
    }
}
