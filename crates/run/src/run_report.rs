//! `plimsoll report`: the contents of a run directory on one page.

use std::path::{Path, PathBuf};

use parallel::pipeline::{self, ActionTimes, simulate};
use serde_json::Value;
use system::input;
use telemetry::operators::{self, OperatorProfile};
use telemetry::report::{Curve, Notice, PhaseRow, RankMemory, Report, SchedulePicture, StepPoint, Tile};
use telemetry::step_trace::{Divergence, Outlived, RankTraces};
use telemetry::units::{bytes, counted, duration, grouped};
use telemetry::{Phase, Prediction};

use crate::error::{Result, RunError};
use crate::metrics_history::{MetricsHistory, Timed};
use crate::run_directory::CONFIG;
use crate::sessions;
use config::RunConfig;
use plan::{memory_tiles, subtitle};
use worker::setup::blueprint;

/// Keys of a rank's memory statistics in `summary.json`, in the order of [`RankMemory::figures`].
const FIGURES: [&str; 4] =
    ["allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "peak_reserved_bytes"];

/// Builds the report page of a run. A run in progress has no summary and no traces. With `others`, the page
/// also shows the learning curves of all runs.
///
/// # Errors
/// A directory has no run, or a file in it is invalid.
pub fn report_run(run_dir: &Path, others: &[PathBuf]) -> Result<Report> {
    let all = std::iter::once(run_dir).chain(others.iter().map(PathBuf::as_path));
    let curves = if others.is_empty() { Vec::new() } else { all.map(curve).collect::<Result<_>>()? };
    let config = configuration_of(run_dir, &[])?;
    let prediction = Prediction::read(run_dir)?;
    let metrics = MetricsHistory::read(run_dir, prediction.as_ref())?;
    let damage = metrics.damage(run_dir);
    let MetricsHistory { points: mut history, timed, expert_loads, slowdown, .. } = metrics;
    let summary = read(&run_dir.join("summary.json"))?.map(|text| parse(run_dir, &text)).transpose()?;
    if summary.as_ref().is_some_and(|summary| summary["device"] == "meta") {
        // Meta computes no numbers.
        history.iter_mut().for_each(|point| point.is_finite = true);
    }
    let ranks = match &summary {
        Some(summary) => ranks(run_dir, &config, summary)?,
        None => Vec::new(),
    };
    let mut notices = notices(&ranks, &history, summary.as_ref());
    notices.extend(slowdown.into_iter().chain(damage).map(|text| Notice { good: false, text }));
    Ok(Report {
        title: name_of(run_dir),
        subtitle: subtitle(&config, summary.as_ref().map(device)),
        tiles: tiles(&config, &ranks, (&history, timed), prediction.as_ref(), summary.as_ref()),
        notices,
        schedule: schedule(&config)?,
        curves,
        operators: OperatorProfile::read(&run_dir.join(operators::FILE))?,
        phases: summary.as_ref().map(phases).unwrap_or_default(),
        expert_loads,
        differences: String::new(),
        unit: config.model.examples().unit(),
        configuration: config.to_toml(),
        sessions: sessions::rows(run_dir, config.model.examples().rate()),
        history,
        ranks,
    })
}

fn name_of(run_dir: &Path) -> String {
    run_dir.file_name().unwrap_or(run_dir.as_os_str()).to_string_lossy().into_owned()
}

/// Returns the learning curve of a run.
fn curve(run_dir: &Path) -> Result<Curve> {
    configuration_of(run_dir, &[])?;
    Ok(Curve { name: name_of(run_dir), history: MetricsHistory::read(run_dir, None)?.points })
}

/// Returns the median phase times and step time of each rank.
fn phases(summary: &Value) -> Vec<PhaseRow> {
    let ranks = summary["ranks"].as_array().map(Vec::as_slice).unwrap_or_default();
    let time = |entry: &Value, name: &str| entry[format!("median_{name}_microseconds")].as_u64();
    let row = |(index, entry): (usize, &Value)| {
        let step = ("step".to_owned(), time(entry, "step").filter(|time| *time > 0)?);
        let phases =
            Phase::ALL.iter().filter_map(|phase| Some((phase.name().to_owned(), time(entry, phase.name())?)));
        Some(PhaseRow { rank: index, microseconds: phases.chain([step]).collect() })
    };
    ranks.iter().enumerate().filter_map(row).collect()
}

/// Returns the configuration of the run in `run_dir`, with `overrides` as for [`RunConfig::load`].
///
/// # Errors
/// There is no run, or its configuration is invalid.
pub fn configuration_of(run_dir: &Path, overrides: &[String]) -> Result<RunConfig> {
    let path = run_dir.join(CONFIG);
    if !path.exists() {
        let text = format!("there is no run in {}: it has no config.toml", run_dir.display());
        return Err(RunError::Refused(text));
    }
    Ok(RunConfig::load(&path, overrides)?)
}

/// Maximum size of a file that is read whole, in bytes.
const MOST_BYTES: u64 = 256 << 20;

/// Returns a file's text; `None` if there is no such file.
fn read(path: &Path) -> Result<Option<String>> {
    match input::read_text(path, MOST_BYTES) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(RunError::unreadable(path, source)),
    }
}

fn parse(run_dir: &Path, text: &str) -> Result<Value> {
    let broken = |error| RunError::Refused(format!("{}: {error}", run_dir.join("summary.json").display()));
    serde_json::from_str(text).map_err(broken)
}

fn ranks(run_dir: &Path, config: &RunConfig, summary: &Value) -> Result<Vec<RankMemory>> {
    let limit = Some(config.memory.limit_bytes).filter(|limit| *limit > 0);
    let entries = summary["ranks"].as_array().map(Vec::as_slice).unwrap_or_default();
    let memory = |(index, entry): (usize, &Value)| {
        let rank = entry["rank"].as_u64().and_then(|rank| usize::try_from(rank).ok()).unwrap_or(index);
        let path: PathBuf = planned::traces_path(run_dir, rank);
        let traces = if path.is_file() { Some(RankTraces::read(&path)?) } else { None };
        let text = |key: &str| entry[key].as_str().unwrap_or_default();
        let host = text("host");
        let on = if host.is_empty() { String::new() } else { format!(" on {host}") };
        Ok(RankMemory {
            ranks: vec![rank],
            device: format!("{}{on}", text("device")),
            figures: FIGURES.map(|key| entry[key].as_u64().unwrap_or(0)),
            planned: traces.as_ref().and_then(|traces| traces.steady.planned().cloned()),
            measured: traces.and_then(|traces| traces.steady.measured),
            limit,
        })
    };
    entries.iter().enumerate().map(memory).collect()
}

fn device(summary: &Value) -> &str {
    summary["device_model"].as_str().or(summary["device"].as_str()).unwrap_or_default()
}

fn tiles(
    config: &RunConfig,
    ranks: &[RankMemory],
    (history, (timed, seconds)): (&[StepPoint], Timed),
    prediction: Option<&Prediction>,
    summary: Option<&Value>,
) -> Vec<Tile> {
    let mut tiles = memory_tiles(ranks);
    if let Some(capacity) = summary.and_then(|summary| summary["capacity_bytes"].as_u64()) {
        tiles.push(Tile {
            name: "Capacity",
            value: bytes(capacity),
            note: format!("{} bytes", grouped(capacity)),
        });
    }
    let steps = config.train.steps;
    if let Some(last) = history.last() {
        let value = grouped(last.step);
        tiles.push(Tile { name: "Steps", value, note: format!("of {}", grouped(steps)) });
        if let Some(loss) = last.loss {
            let validated = history.iter().rev().find(|point| point.validation_loss.is_some());
            let note = validated.and_then(|point| {
                let loss = point.validation_loss?;
                let when = if point.step < last.step {
                    format!(" after step {}", point.step)
                } else {
                    String::new()
                };
                Some(format!("validation {loss:.4}{when}"))
            });
            let note = note.unwrap_or_default();
            tiles.push(Tile { name: "Loss", value: format!("{loss:.4}"), note });
        }
    }
    if timed > 0 {
        let predicted =
            prediction.map_or_else(String::new, |own| format!(", predicted {:.1}", 1e3 * own.step_seconds));
        let note = format!("{:.1} ms a step{predicted}", 1e3 * seconds / timed as f64);
        tiles.push(Tile { name: "Time in steps", value: duration(seconds), note });
    }
    let Some(summary) = summary else { return tiles };
    if let Some(speed) = summary["tokens_per_second"].as_f64().filter(|speed| *speed > 0.0) {
        let per = format!("{} per second", config.model.examples().unit());
        let value = grouped(speed.round() as u64);
        tiles.push(Tile { name: "Throughput", value, note: per.to_lowercase() });
    }
    if let Some(hash) = summary["weights_sha256"].as_str().filter(|hash| hash.len() > 8) {
        let note = "SHA-256 of the weights".to_owned();
        tiles.push(Tile { name: "Weights", value: format!("{}…", &hash[..8]), note });
    }
    tiles
}

fn notices(ranks: &[RankMemory], history: &[StepPoint], summary: Option<&Value>) -> Vec<Notice> {
    let bad = |text: String| Notice { good: false, text };
    let Some(summary) = summary else {
        let steps = history.last().map_or(0, |point| point.step);
        return vec![bad(format!(
            "This run has no summary: it has not ended, or it failed. {} are written.",
            counted(steps, "step")
        ))];
    };
    let entries = |key: &str| summary[key].as_array().cloned().unwrap_or_default();
    let mut notices = Vec::new();
    for entry in entries("divergences") {
        let sentence = serde_json::from_value::<Divergence>(entry).map(|divergence| divergence.to_string());
        notices.extend(sentence.ok().map(bad));
    }
    for entry in entries("outlived") {
        let sentence = serde_json::from_value::<Outlived>(entry).map(|outlived| outlived.to_string());
        notices.extend(sentence.ok().map(bad));
    }
    if let Some(step) = summary["nonfinite"]["step"].as_u64() {
        let text = |key: &str| summary["nonfinite"][key].as_str().unwrap_or("unknown").to_owned();
        notices.push(bad(format!(
            "This run ended after step {}: its loss is {} and its gradient norm {}. No such state is saved.",
            grouped(step),
            text("loss"),
            text("gradient_norm")
        )));
    }
    if summary["interrupted"].as_bool() == Some(true) {
        notices.push(bad("This run was stopped before its last step.".to_owned()));
    }
    let planned = !ranks.is_empty() && ranks.iter().all(|rank| rank.planned.is_some());
    if notices.is_empty() && planned {
        let text = "Every rank used what was planned, to the byte, in every step.".to_owned();
        notices.push(Notice { good: true, text });
    }
    notices
}

/// Returns a picture of the pipeline schedule, with all passes equally long because their durations are not
/// recorded.
fn schedule(config: &RunConfig) -> Result<Option<SchedulePicture>> {
    if config.parallel.pipeline == 1 {
        return Ok(None);
    }
    let schedule = blueprint::schedule(config)?;
    let times = ActionTimes::equal(config.stages(), [1; 3], 0);
    let timeline = simulate(&schedule, &times).map_err(|error| RunError::Refused(error.to_string()))?;
    let note = "drawn with passes of equal length".to_owned();
    Ok(Some(SchedulePicture { picture: pipeline::svg(&schedule, &timeline, "passes"), note }))
}
