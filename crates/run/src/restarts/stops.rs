//! Requests to stop that reach the process that restarts a job.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use system::threads;

use crate::error::{Result, RunError};

/// The number of signals to stop so far.
#[derive(Clone, Debug)]
pub(super) struct Stops(Arc<AtomicUsize>);

impl Stops {
    /// Starts to count SIGINT (Ctrl-C), SIGTERM, SIGHUP and SIGUSR1.
    ///
    /// # Errors
    /// The system refuses.
    pub(super) fn hear() -> Result<Self> {
        let refused = |error| RunError::Refused(format!("signals cannot be handled: {error}"));
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1]).map_err(refused)?;
        let stops = Stops(Arc::default());
        let counted = Arc::clone(&stops.0);
        let count = move || {
            for _ in signals.forever() {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        };
        threads::spawn("signals", count).map_err(refused)?;
        Ok(stops)
    }

    /// Returns the number of signals so far.
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}
