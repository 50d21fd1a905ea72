//! How many bytes of scratch each call takes on a GPU: the only place that says so, for the device and for its plan.

/// What cuBLASLt may use, for the whole life of a device: what NVIDIA recommends for Hopper.
pub const PRODUCT: usize = 32 << 20;
