//! The cause of a restart, which the process that restarts a job tells its ranks.

use std::path::Path;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use telemetry::status::Record;

/// The environment variable with the cause, as JSON.
pub(crate) const VARIABLE: &str = "PLIMSOLL_RESTART";

/// The restart of a job, and the state of the run before it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cause {
    /// Number of the restart, from 1.
    pub(crate) restart: u64,
    /// Why the job was started again, in a sentence.
    pub(crate) reason: String,
    /// Steps that were done before.
    pub(crate) steps: u64,
    /// Time of the last sign of life of the rank that was silent first, since 1970.
    pub(crate) seen_seconds: f64,
}

impl Cause {
    /// Returns the cause of this process's start, if another process restarted its job.
    pub(crate) fn of_process() -> Option<Self> {
        serde_json::from_str(&std::env::var(VARIABLE).ok()?).ok()
    }

    /// Returns the restart after a job of `ranks` ranks that ended for this reason, with the progress that
    /// its ranks left in `logs`.
    pub(crate) fn of_ranks(logs: &Path, ranks: usize, restart: u64, reason: String) -> Self {
        let records: Vec<_> = (0..ranks).filter_map(|rank| Record::read(logs, rank)).collect();
        // A rank is in the step after those that are done.
        let steps = records.iter().map(|record| record.step.saturating_sub(1)).max().unwrap_or(0);
        // Ranks that notice a failure write once more when they end.
        let seen = records.iter().map(|record| record.seen).min().unwrap_or_else(now);
        Cause { restart, reason, steps, seen_seconds: seen.as_secs_f64() }
    }

    /// Seconds since the last sign of life before the restart.
    pub(crate) fn seconds_since(&self) -> f64 {
        (now().as_secs_f64() - self.seen_seconds).max(0.0)
    }

    /// Returns the text of [`VARIABLE`].
    pub(crate) fn encode(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
