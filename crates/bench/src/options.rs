//! Options of a measurement, and the median of several.

use std::path::PathBuf;
use std::time::Duration;

use worker::DeviceChoice;

/// Default warm-up of a GPU, whose clocks drop during the first seconds of work.
pub const GPU_WARM_UP: Duration = Duration::from_secs(5);

/// Options of a measurement.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// The device to measure.
    pub device: DeviceChoice,
    /// Number of timed steps.
    pub steps: u64,
    /// Minimum number of steps before them.
    pub warm_up: u64,
    /// Minimum duration of those steps (see [`GPU_WARM_UP`]).
    pub warm_up_time: Duration,
    /// Whether to time the kernels of a further step.
    pub profile: bool,
    /// Directory for a timeline of two further steps.
    pub trace: Option<PathBuf>,
}

/// Returns whether a measurement on a chosen device is one of a GPU.
#[must_use]
pub fn measures_gpu(device: DeviceChoice) -> bool {
    match device {
        DeviceChoice::Cpu | DeviceChoice::Meta => false,
        DeviceChoice::Auto | DeviceChoice::Cuda => device::cuda::availability().is_ok(),
    }
}

/// Returns the median; the larger of the two middle values if their number is even.
pub(crate) fn median(seconds: &[f64]) -> f64 {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
