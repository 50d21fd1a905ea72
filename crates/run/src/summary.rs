//! The summary of a run: `summary.json`.

use std::path::Path;

use planned::{Calendar, Findings};
use serde_json::json;
use telemetry::run_files::{self, Summary};
use telemetry::{LATER_LOSSES, RankStatistics};
use worker::{Setup, Start, build};

use crate::error::{Result, RunError};
use crate::history::History;

/// Name of the file.
pub(crate) const SUMMARY: &str = "summary.json";

/// Key of the values that validations compute with, if these are not the weights.
pub(crate) const VALIDATION_WEIGHTS: &str = "validation_weights";
/// Value of [`VALIDATION_WEIGHTS`] if validations compute with averages of the weights.
pub(crate) const AVERAGE: &str = "average";

/// Builds the summary of a run.
pub(crate) fn summarize(
    setup: &Setup,
    history: &History,
    ranks: Vec<RankStatistics>,
    weights_sha256: String,
    findings: &[Findings],
) -> Summary {
    let config = &setup.config;
    let timed = history.timed_steps * build::tokens_per_step(config, &setup.dataset);
    let mut more = serde_json::Map::new();
    more.insert("version".to_owned(), env!("CARGO_PKG_VERSION").into());
    let description = setup.placement.description();
    more.insert("device_model".to_owned(), description.model.into());
    more.insert("capacity_bytes".to_owned(), description.total_bytes.into());
    more.insert("libraries".to_owned(), description.libraries.into());
    more.insert("configuration_sha256".to_owned(), config.fingerprint().into());
    more.insert("interrupted".to_owned(), history.interrupted.into());
    if let Some(bytes) = device::host::peak_resident() {
        more.insert("host_peak_bytes".to_owned(), bytes.into());
    }
    match &setup.start {
        Start::Drawn => {}
        Start::Weights(from) => {
            more.insert("weights_from".to_owned(), from.path().to_string_lossy().into());
        }
        Start::Resumed(_) => {
            more.insert("resumed_after_step".to_owned(), history.first.into());
        }
    }
    if let Some(steps) = history.skipped_steps {
        more.insert("skipped_steps".to_owned(), steps.into());
    }
    if let Some(lost) = &history.lost {
        // JSON has no numbers that are not finite.
        let loss = lost.loss.to_string();
        let norm = lost.gradient_norm.to_string();
        let lost = json!({ "step": lost.step, "loss": loss, "gradient_norm": norm });
        more.insert("nonfinite".to_owned(), lost);
    }
    if let Some(spike) = &history.spike {
        more.insert("spike".to_owned(), json!(spike));
    }
    let divergences: Vec<_> = findings.iter().filter_map(|finding| finding.divergence.as_ref()).collect();
    let outlived: Vec<_> = findings.iter().filter_map(|finding| finding.outlived.as_ref()).collect();
    more.insert("divergences".to_owned(), json!(divergences));
    more.insert("outlived".to_owned(), json!(outlived));
    if let Some(loss) = history.validations.last {
        more.insert("validation_loss".to_owned(), loss.into());
        more.insert("validation_step".to_owned(), history.validations.step.into());
        if config.train.validate_ema {
            more.insert(VALIDATION_WEIGHTS.to_owned(), AVERAGE.into());
        }
    }
    if let Some(accuracy) = history.accuracy {
        more.insert("validation_top_1".to_owned(), accuracy.top_1().into());
        more.insert("validation_top_5".to_owned(), accuracy.top_5().into());
    }
    if !history.later_losses.is_empty() {
        more.insert(LATER_LOSSES.to_owned(), json!(history.later_losses));
    }
    let figures = history.preference.iter().flat_map(worker::PreferenceFigures::named);
    more.extend(figures.map(|(name, figure)| (format!("validation_{name}"), figure.into())));
    Summary {
        device: setup.placement.name().to_owned(),
        world_size: config.world_size(),
        grid: config.parallel.grid().named().collect(),
        steps: history.steps,
        losses: history.losses.clone(),
        weights_sha256,
        tokens_per_second: if history.seconds > 0.0 { timed as f64 / history.seconds } else { 0.0 },
        ranks,
        more,
    }
}

/// Returns the run's summary as text if it was written after `step` steps.
pub(crate) fn of_step(step: u64, run_dir: &Path) -> Option<Vec<u8>> {
    let (text, summary) = Summary::read_with_text(&run_dir.join(SUMMARY)).ok().flatten()?;
    (summary.steps == step).then_some(text)
}

/// Removes the summary at the start of a run, because a run in progress has none.
///
/// # Errors
/// The summary cannot be removed.
pub(crate) fn remove(run_dir: &Path) -> Result<()> {
    let path = run_dir.join(SUMMARY);
    match std::fs::remove_file(&path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(RunError::File { path, source }),
        _ => Ok(()),
    }
}

/// Writes the text of an earlier summary.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write_again(text: &[u8], run_dir: &Path) -> Result<()> {
    Ok(run_files::atomic_write(&run_dir.join(SUMMARY), text)?)
}

/// Writes the summary.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write(summary: &Summary, run_dir: &Path) -> Result<()> {
    Ok(summary.write(&run_dir.join(SUMMARY))?)
}

/// Returns the summary of the run that `setup` resumes, if the run is complete and the summary is of its last
/// step.
pub(crate) fn of_complete_run(setup: &Setup, run_dir: &Path) -> Option<Summary> {
    let checkpoint = &setup.resumed()?.checkpoint;
    let steps = checkpoint.step();
    let since_best = checkpoint.validations().since_best;
    let has_ended =
        steps == setup.config.train.steps || Calendar::new(&setup.config).is_out_of_patience(since_best);
    // A summary that cannot be read is written again.
    let summary = Summary::read(&run_dir.join(SUMMARY)).ok().flatten()?;
    (has_ended && summary.steps == steps).then_some(summary)
}
