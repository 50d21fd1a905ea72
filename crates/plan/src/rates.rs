//! Rates of a device.

use device::DType;
use serde::{Deserialize, Serialize};

/// Compute, memory and link rates of a device, from which times are predicted.
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
    /// Bytes per second that a rank sends to ranks of other hosts; key `bytes` of `[network]`.
    #[serde(skip)]
    pub network_bytes: Option<f64>,
    /// FLOP/s of large matmuls in TF32; `None` means half the rate in bf16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flops_tf32: Option<f64>,
    /// FLOP/s of large matmuls in FP8; `None` means twice the rate in bf16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flops_fp8: Option<f64>,
    /// Host seconds per kernel launch, including the operator around it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch_seconds: Option<f64>,
    /// Seconds of an empty kernel, including the gap before the next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_seconds: Option<f64>,
    /// Host seconds to begin one CUDA graph in a replayed step. Each section and each communication call
    /// begins one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph_seconds: Option<f64>,
    /// Seconds that a CUDA graph saves before the start of a call; `None` means 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph_gain_seconds: Option<f64>,
    /// Bytes per second of copies between a device and pinned memory, in each direction while both are in
    /// use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_copy_bytes: Option<f64>,
    /// Bytes per second at which the host's threads fill pinned memory with micro-batches in half types.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_fill_bytes: Option<f64>,
    /// Seconds of the shortest message between ranks of one host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_seconds: Option<f64>,
    /// Seconds of the shortest message between hosts; key `seconds` of `[network]`.
    #[serde(skip)]
    pub network_seconds: Option<f64>,
    /// Names of the fields above that were assumed, not measured on such a device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assumed: Vec<String>,
}

impl DeviceRates {
    /// Returns the FLOP/s of large matmuls in TF32.
    #[must_use]
    pub fn tf32(&self) -> f64 {
        self.flops_tf32.unwrap_or(self.flops_bf16 / 2.0)
    }

    /// Returns the FLOP/s of large matmuls in FP8.
    #[must_use]
    pub fn fp8(&self) -> f64 {
        self.flops_fp8.unwrap_or(2.0 * self.flops_bf16)
    }

    /// Returns the host seconds per kernel launch.
    #[must_use]
    pub fn launch(&self) -> f64 {
        self.launch_seconds.unwrap_or(4e-6)
    }

    /// Returns the seconds of an empty kernel.
    #[must_use]
    pub fn kernel(&self) -> f64 {
        self.kernel_seconds.unwrap_or(3e-6)
    }

    /// Returns the host seconds per CUDA graph of a replayed step.
    #[must_use]
    pub fn graph(&self) -> f64 {
        self.graph_seconds.unwrap_or(10e-6)
    }

    /// Returns the bytes per second of copies between host and device.
    #[must_use]
    pub fn host_copy(&self) -> f64 {
        self.host_copy_bytes.unwrap_or(20e9)
    }

    /// Returns the bytes per second at which the host fills pinned memory with values that it rounds to
    /// `dtype`. Memory moves each value in f32 once, and each byte of `dtype` twice, since a cache line is
    /// read before it is written.
    #[must_use]
    pub fn host_fill(&self, dtype: DType) -> f64 {
        let part = |dtype: DType| {
            let bytes = dtype.bytes() as f64;
            bytes / (DType::F32.bytes() as f64 + 2.0 * bytes)
        };
        self.host_fill_bytes.unwrap_or(15e9) * part(dtype) / part(DType::Bf16)
    }

    /// Returns the bytes per second that a rank sends to ranks of other hosts.
    #[must_use]
    pub fn network(&self) -> f64 {
        self.network_bytes.unwrap_or(self.link_bytes)
    }

    /// Returns the seconds of the shortest message to a rank of this host or, if `is_far`, of another host.
    #[must_use]
    pub fn message(&self, is_far: bool) -> f64 {
        match is_far {
            true => self.network_seconds.unwrap_or(20e-6),
            false => self.link_seconds.unwrap_or(10e-6),
        }
    }

    /// Iterates over all rates, which must be above 0.
    pub(crate) fn all(&self) -> impl Iterator<Item = f64> {
        let required = [self.flops_bf16, self.flops_f32, self.memory_bytes, self.link_bytes];
        required.into_iter().chain(self.optional().into_iter().filter_map(|(_, rate)| rate))
    }

    /// Returns the keys of optional rates that this description omits, for which defaults are assumed.
    pub(crate) fn omitted(&self) -> Vec<&'static str> {
        self.optional().into_iter().filter(|(_, value)| value.is_none()).map(|(key, _)| key).collect()
    }

    /// Returns the keys and values of the optional rates.
    fn optional(&self) -> [(&'static str, Option<f64>); 9] {
        [
            ("flops_tf32", self.flops_tf32),
            ("flops_fp8", self.flops_fp8),
            ("launch_seconds", self.launch_seconds),
            ("kernel_seconds", self.kernel_seconds),
            ("graph_seconds", self.graph_seconds),
            ("graph_gain_seconds", self.graph_gain_seconds),
            ("host_copy_bytes", self.host_copy_bytes),
            ("host_fill_bytes", self.host_fill_bytes),
            ("link_seconds", self.link_seconds),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_bounds_how_fast_the_host_fills_it() {
        let text = "flops_bf16 = 1\nflops_f32 = 1\nmemory_bytes = 1\nlink_bytes = 1\nhost_fill_bytes = 18e9";
        let rates: DeviceRates = toml::from_str(text).unwrap();
        let filled = [DType::Bf16, DType::F16, DType::F32].map(|dtype| rates.host_fill(dtype));
        // 8 bytes move for a value in half types, and 12 for one in f32.
        assert_eq!(filled, [18e9, 18e9, 24e9]);
    }
}
