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
    /// Bytes per second that a rank sends to ranks of other hosts; `None`: as many as on its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_bytes: Option<f64>,
    /// FLOP/s of a whole step divided by FLOP/s of large matmuls.
    pub efficiency: f64,
    /// Keys above whose values were not measured on such a device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assumed: Vec<String>,
}
