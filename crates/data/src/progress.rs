//! Logs the progress of reading a corpus.

use system::numbers::grouped;
use system::pace::Pace;

/// Reads of at least this many units log a first line at once, because they may take long.
const LONG: u64 = 8 << 20;

/// Logs the progress of a long read, at its start and then at intervals.
#[derive(Debug)]
pub(crate) struct Progress {
    doing: &'static str,
    unit: &'static str,
    all: u64,
    pace: Pace,
}

impl Progress {
    /// Begins a read of `all` units. `doing` and `unit` are its name and unit, such as `packing documents`
    /// and `tokens`.
    pub(crate) fn begin(doing: &'static str, all: u64, unit: &'static str) -> Self {
        if all >= LONG {
            tracing::info!("{doing}: reading all {} {unit}", grouped(all));
        }
        Self { doing, unit, all, pace: Pace::of_files() }
    }

    /// Logs that `done` units have been read, if a message is due.
    pub(crate) fn reached(&self, done: u64) {
        if self.pace.is_due() {
            let Self { doing, unit, all, .. } = self;
            let percent = 100.0 * done as f64 / (*all).max(1) as f64;
            tracing::info!("{doing}: {percent:.0} % of {} {unit}", grouped(*all));
        }
    }
}
