//! Counts stop signals sent to the process that restarts a job.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use signal_hook::iterator::Signals;
use system::threads;

use crate::error::{Result, RunError};
use crate::stop_signal::{STOPPING, StopSignal};

/// The stop signals received so far.
#[derive(Clone, Debug)]
pub(super) struct Stops {
    count: Arc<AtomicUsize>,
    /// Number of the first signal; 0 if none came.
    first: Arc<AtomicUsize>,
}

impl Stops {
    /// Starts counting SIGINT (Ctrl-C), SIGTERM, SIGHUP and SIGUSR1.
    pub(super) fn listen() -> Result<Self> {
        let refused = |error| RunError::Refused(format!("signals cannot be handled: {error}"));
        let mut signals = Signals::new(STOPPING).map_err(refused)?;
        let stops = Stops { count: Arc::default(), first: Arc::default() };
        let counted = stops.clone();
        let count = move || {
            for signal in signals.forever() {
                let first = usize::try_from(signal).unwrap_or_default();
                // Only the first is kept.
                let _ = counted.first.compare_exchange(0, first, Ordering::Relaxed, Ordering::Relaxed);
                counted.count.fetch_add(1, Ordering::Release);
            }
        };
        threads::spawn("signals", count).map_err(refused)?;
        Ok(stops)
    }

    /// Returns the number of signals so far.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Returns the exit status of a job that the first signal stopped after a step.
    pub(super) fn status(&self) -> u8 {
        StopSignal::from_number(self.first.load(Ordering::Relaxed)).status()
    }
}
