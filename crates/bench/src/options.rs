//! Options of measurements, and medians.

use std::path::PathBuf;
use std::time::Duration;

use worker::DeviceChoice;

/// Default duration of a GPU's warm-up; its clocks drop during the first seconds of work.
pub const GPU_WARM_UP: Duration = Duration::from_secs(5);

/// Options of a measurement.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// The device to measure.
    pub device: DeviceChoice,
    /// Number of timed steps.
    pub steps: u64,
    /// Minimum number of warm-up steps.
    pub warm_up: u64,
    /// Minimum duration of the warm-up (see [`GPU_WARM_UP`]).
    pub warm_up_time: Duration,
    /// Whether to time the kernels of one more step.
    pub profile: bool,
    /// Directory for a timeline of two more steps, if requested.
    pub trace: Option<PathBuf>,
}

/// Returns whether this choice of device measures a GPU.
#[must_use]
pub fn measures_gpu(device: DeviceChoice) -> bool {
    match device {
        DeviceChoice::Cpu | DeviceChoice::Meta => false,
        DeviceChoice::Auto | DeviceChoice::Cuda => device::cuda::availability().is_ok(),
    }
}

/// Returns the median; of an even number of values, the larger middle one.
pub(crate) fn median(seconds: &[f64]) -> f64 {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
