//! One of two compared runs.

use std::path::{Path, PathBuf};

use config::RunConfig;
use telemetry::report::StepPoint;
use telemetry::run_files::Summary;

use crate::error::Result;
use crate::metrics_history::MetricsHistory;
use crate::run_report::configuration_of;
use crate::summary::SUMMARY;

/// One of the compared runs.
#[derive(Clone, Debug)]
pub struct ComparedRun {
    /// The run directory.
    pub path: PathBuf,
    /// Configuration of the run.
    pub config: RunConfig,
    /// Summary of the run, if it has ended.
    pub summary: Option<Summary>,
    /// Steps of the run.
    pub history: Vec<StepPoint>,
    /// How many lines of its metrics are damaged and left out, in a sentence; `None` if none are.
    pub damage: Option<String>,
}

impl ComparedRun {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let config = configuration_of(path, &[])?;
        let metrics = MetricsHistory::read(path, None)?;
        let damage = metrics.damage(path);
        let summary = Summary::read(&path.join(SUMMARY))?;
        Ok(ComparedRun { path: path.to_owned(), config, summary, history: metrics.points, damage })
    }
}
