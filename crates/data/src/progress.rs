//! Progress of reading a corpus, in lines of the log.

use system::numbers::grouped;
use system::pace::Pace;

/// The amount from which reading may take so long that its first line comes at once.
const LONG: u64 = 8 << 20;

/// Reports how far a long read is: at its start, and then at times.
#[derive(Debug)]
pub(crate) struct Progress {
    doing: &'static str,
    unit: &'static str,
    all: u64,
    pace: Pace,
}

impl Progress {
    /// Begins a read of `all` units, as in `packing documents` of so many `tokens`.
    pub(crate) fn begin(doing: &'static str, all: u64, unit: &'static str) -> Self {
        if all >= LONG {
            tracing::info!("{doing}: reading all {} {unit}", grouped(all));
        }
        Self { doing, unit, all, pace: Pace::of_files() }
    }

    /// Reports that `done` units have been read, if it is time to.
    pub(crate) fn reached(&self, done: u64) {
        if self.pace.is_due() {
            let Self { doing, unit, all, .. } = self;
            let percent = 100.0 * done as f64 / (*all).max(1) as f64;
            tracing::info!("{doing}: {percent:.0} % of {} {unit}", grouped(*all));
        }
    }
}
