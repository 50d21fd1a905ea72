//! How long to measure, and the typical one of several measurements.

use std::path::PathBuf;
use std::time::Duration;

use worker::DeviceChoice;

/// How long a GPU warms up where nobody says otherwise: its clocks fall in the first seconds of work.
pub const GPU_WARM_UP: Duration = Duration::from_secs(5);

/// How long to measure.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// What to compute on.
    pub device: DeviceChoice,
    /// Steps that are timed.
    pub steps: u64,
    /// Steps before them, at least.
    pub warm_up: u64,
    /// How long these take, at least (see [`GPU_WARM_UP`]).
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
