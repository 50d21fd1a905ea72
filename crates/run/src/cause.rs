//! The cause of a restart, which the restarting process passes to its ranks.

use std::path::Path;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use telemetry::status::Record;

/// Name of the environment variable that holds the cause as JSON.
pub(crate) const VARIABLE: &str = "PLIMSOLL_RESTART";

/// Why a job was restarted, and how far its run had come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cause {
    /// Number of the restart, from 1.
    pub(crate) restart: u64,
    /// A sentence about why the job was restarted.
    pub(crate) reason: String,
    /// Steps completed before the restart.
    pub(crate) steps: u64,
    /// Time of the first silent rank's last report, in seconds since 1970.
    pub(crate) seen_seconds: f64,
}

impl Cause {
    /// Reads the cause from the environment; `None` if no process restarted this job.
    pub(crate) fn of_process() -> Option<Self> {
        serde_json::from_str(&std::env::var(VARIABLE).ok()?).ok()
    }

    /// Builds the cause of restart number `restart` from the status files of `ranks` ranks in `logs`.
    pub(crate) fn of_ranks(logs: &Path, ranks: usize, restart: u64, reason: String) -> Self {
        let records: Vec<_> = (0..ranks).filter_map(|rank| Record::read(logs, rank)).collect();
        // A rank is in the step after those that are done.
        let steps = records.iter().map(|record| record.step.saturating_sub(1)).max().unwrap_or(0);
        // Ranks that notice a failure write once more when they end.
        let seen = records.iter().map(|record| record.seen).min().unwrap_or_else(now);
        Cause { restart, reason, steps, seen_seconds: seen.as_secs_f64() }
    }

    /// Returns the seconds since the silent rank last reported.
    pub(crate) fn seconds_since(&self) -> f64 {
        (now().as_secs_f64() - self.seen_seconds).max(0.0)
    }

    /// Encodes the cause as the value of [`VARIABLE`].
    pub(crate) fn encode(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
