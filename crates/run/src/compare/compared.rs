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
    /// Summary of the run; `None` if it has not ended.
    pub summary: Option<Summary>,
    /// Loss and gradient norm of each step.
    pub history: Vec<StepPoint>,
    /// A sentence with the number of damaged lines in its metrics, which are skipped; `None` if there are
    /// none.
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
