//! `plimsoll runs`: a list of the runs below a directory.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use device::Backend;
use serde::{Serialize, Serializer};
use telemetry::Statistic;
use telemetry::run_files::Summary;

use crate::error::{Result, RunError};
use crate::metrics_history::MetricsHistory;
use crate::run_directory::CONFIG;
use crate::run_report::configuration_of;
use crate::sessions::{self, Ending};
use crate::summary::SUMMARY;

/// State and results of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ListedRun {
    /// Directory of the run. In JSON, bytes that are not UTF-8 are replaced.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// State of the last session: `complete`, `stopped`, `failed`, `killed`, `not finite`, `running` or `not
    /// begun`.
    pub state: &'static str,
    /// Time at which its first session began, in UTC.
    pub started: Option<String>,
    /// Steps completed.
    pub steps: u64,
    /// Number of steps configured.
    pub of_steps: u64,
    /// Loss of the last step, if finite.
    pub loss: Option<f64>,
    /// The lowest validation loss.
    pub best_validation_loss: Option<f64>,
    /// Tokens (or samples) per second: in the last session, or in the last step of a session in progress.
    pub tokens_per_second: Option<f64>,
    /// Peak allocated bytes, the maximum over ranks.
    pub peak_allocated_bytes: Option<u64>,
    /// Size of each grid axis, as in `2 × 4`.
    pub grid: String,
    /// SHA-256 of the final weights; `None` before a session has ended.
    pub weights_sha256: Option<String>,
    /// Why the run's files cannot be read.
    pub error: Option<String>,
}

fn as_text<S: Serializer>(path: &Path, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

/// Lists `directory` itself if it is a run, or else the runs directly below it, sorted by name. A run whose
/// files cannot be read is listed with the reason.
///
/// # Errors
/// The directory cannot be listed.
pub fn list_runs(directory: &Path) -> Result<Vec<ListedRun>> {
    let unreadable = |error: std::io::Error| {
        RunError::Refused(format!("{}: it cannot be listed: {error}", directory.display()))
    };
    if directory.join(CONFIG).exists() {
        return Ok(vec![listed(directory)]);
    }
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        paths.extend(path.join(CONFIG).exists().then_some(path));
    }
    paths.sort();
    Ok(paths.iter().map(|path| listed(path)).collect())
}

fn listed(path: &Path) -> ListedRun {
    read(path).unwrap_or_else(|error| ListedRun {
        path: path.to_owned(),
        state: "unreadable",
        error: Some(error.to_string()),
        ..ListedRun::default()
    })
}

fn read(path: &Path) -> Result<ListedRun> {
    let config = configuration_of(path, &[])?;
    let history = MetricsHistory::read(path, None)?.points;
    let summary = Summary::read(&path.join(SUMMARY))?;
    let sessions = sessions::all(path);
    let last = sessions.last();
    let state = match last.map(|session| &session.ending) {
        None => "not begun",
        Some(Ending::Running) if is_training(path) => "running",
        Some(ending) => ending.name(),
    };
    let summary = summary.filter(|_| state != "running");
    // Meta counts memory and computes no numbers.
    let computes = summary.as_ref().is_none_or(|summary| summary.device != Backend::Meta.name());
    let peak =
        |summary: &Summary| summary.ranks.iter().map(|rank| rank.get(Statistic::PeakAllocatedBytes)).max();
    let validations = history.iter().filter_map(|point| point.validation_loss);
    let newest = history.last();
    let computed = newest.filter(|_| computes);
    Ok(ListedRun {
        path: path.to_owned(),
        state,
        started: sessions.first().map(|session| session.started.clone()),
        steps: newest.map_or(0, |point| point.step),
        of_steps: config.train.steps,
        loss: computed.and_then(|point| point.loss),
        best_validation_loss: validations.reduce(f64::min).filter(|_| computes),
        tokens_per_second: match &summary {
            Some(summary) => Some(summary.tokens_per_second).filter(|speed| computes && *speed > 0.0),
            None => newest.and_then(|point| point.tokens_per_second),
        },
        peak_allocated_bytes: summary.as_ref().and_then(peak),
        grid: config.parallel.grid().to_string(),
        weights_sha256: summary.filter(|_| computes).map(|summary| summary.weights_sha256),
        error: None,
    })
}

/// Returns whether a process is training in the run directory.
#[must_use]
pub fn is_training(path: &Path) -> bool {
    let Ok(directory) = File::open(path) else { return false };
    match directory.try_lock_shared() {
        // A file system without locks does not tell.
        Err(TryLockError::WouldBlock | TryLockError::Error(_)) => true,
        Ok(()) => false,
    }
}
