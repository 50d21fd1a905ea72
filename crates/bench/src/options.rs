//! Options of a measurement, and the median of several.

use std::path::PathBuf;
use std::time::Duration;

use worker::DeviceChoice;

/// Default warm-up of a GPU, whose clocks fall in the first seconds of work.
pub const GPU_WARM_UP: Duration = Duration::from_secs(5);

/// Options of a measurement.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// The device.
    pub device: DeviceChoice,
    /// Steps that are timed.
    pub steps: u64,
    /// Steps before them, at least.
    pub warm_up: u64,
    /// Least duration of these steps (see [`GPU_WARM_UP`]).
    pub warm_up_time: Duration,
    /// A directory for two more steps as a timeline.
    pub trace: Option<PathBuf>,
}

/// The median; the larger one of two in the middle.
pub(crate) fn median(seconds: &[f64]) -> f64 {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
