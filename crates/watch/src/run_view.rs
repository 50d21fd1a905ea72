//! The state of a run, read from its files.

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use run::{RunError, configuration_of, is_training};
use serde::Deserialize;
use serde_json::Value;
use system::input;
use telemetry::status::Record;
use telemetry::step_trace::{Divergence, Outlived};
use telemetry::{Prediction, RankStep};

use crate::tail::Tail;

/// Maximum size of `sessions.json` and `summary.json` in bytes.
const MOST_BYTES: u64 = 256 << 20;
/// Number of records kept per rank, to detect growing memory.
const KEPT: usize = 6;

/// Number of latest steps whose median time is compared with the prediction.
const RECENT: usize = 9;

/// A line of `metrics.jsonl`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct StepLine {
    pub(crate) step: u64,
    pub(crate) seconds: Option<f64>,
    pub(crate) loss: Option<f64>,
    pub(crate) learning_rate: Option<f64>,
    pub(crate) tokens_per_second: Option<f64>,
    #[serde(default)]
    pub(crate) mfu: Option<f64>,
    #[serde(default)]
    pub(crate) predicted_seconds: Option<f64>,
    #[serde(default)]
    pub(crate) validation_loss: Option<f64>,
    #[serde(default)]
    ranks: Vec<RankStep>,
}

/// The values of a step that are drawn over time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) step: u64,
    pub(crate) loss: Option<f64>,
    pub(crate) learning_rate: Option<f64>,
}

/// A run, as shown by the files in its directory.
#[derive(Debug)]
pub struct RunView {
    run_dir: PathBuf,
    pub(crate) title: String,
    pub(crate) steps: u64,
    pub(crate) unit: &'static str,
    pub(crate) world_size: usize,
    metrics: Tail,
    pub(crate) points: Vec<Point>,
    pub(crate) last: Option<StepLine>,
    pub(crate) validation_loss: Option<f64>,
    /// Latest records of each rank with the step of each, the newest last.
    pub(crate) records: BTreeMap<usize, VecDeque<(u64, RankStep)>>,
    /// The last known activity of each rank.
    pub(crate) statuses: Vec<Option<Record>>,
    /// The state of the run's last session.
    pub(crate) state: State,
    /// Seconds of each of the latest steps.
    recent: VecDeque<f64>,
    /// Predicted step of the last session, if any.
    pub(crate) prediction: Option<Prediction>,
    /// Sentences about differences from the plan and growing memory, once the run has ended.
    pub(crate) findings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// No session has begun yet.
    Unknown,
    Running,
    /// The last session has ended, as described.
    Ended(String),
}

impl RunView {
    /// Opens the run in `run_dir`. Only reads the configuration.
    ///
    /// # Errors
    /// There is no run, or its configuration is invalid.
    pub fn open(run_dir: &Path) -> Result<Self, RunError> {
        let config = configuration_of(run_dir, &[])?;
        let name = run_dir.file_name().unwrap_or(run_dir.as_os_str());
        Ok(RunView {
            title: name.to_string_lossy().into_owned(),
            steps: config.train.steps,
            unit: config.model.examples().rate(),
            world_size: config.world_size(),
            metrics: Tail::new(run_dir.join("metrics.jsonl")),
            points: Vec::new(),
            last: None,
            validation_loss: None,
            records: BTreeMap::new(),
            statuses: Vec::new(),
            state: State::Unknown,
            recent: VecDeque::new(),
            prediction: None,
            findings: Vec::new(),
            run_dir: run_dir.to_owned(),
        })
    }

    /// Reads everything written since the last call.
    pub fn refresh(&mut self) -> Result<(), RunError> {
        let path = self.run_dir.join("metrics.jsonl");
        let mut metrics = self.metrics.clone();
        // Lines damaged by a killed process are skipped.
        let read =
            metrics.read(|line| serde_json::from_slice(line).into_iter().for_each(|line| self.add(line)));
        read.map_err(|source| RunError::unreadable(&path, source))?;
        self.metrics = metrics;
        let logs = self.run_dir.join("logs");
        self.statuses = (0..self.world_size).map(|rank| Record::read(&logs, rank)).collect();
        self.state = match state(&self.read_json("sessions.json")?) {
            State::Running if !is_training(&self.run_dir) => State::Ended("killed".to_owned()),
            state => state,
        };
        self.prediction = serde_json::from_value(self.read_json("prediction.json")?).ok();
        if matches!(self.state, State::Ended(_)) {
            self.findings = findings(&self.read_json("summary.json")?);
        }
        Ok(())
    }

    fn add(&mut self, mut line: StepLine) {
        let StepLine { step, loss, learning_rate, .. } = line;
        self.recent.extend(line.seconds);
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
        // A resumed run repeats steps.
        self.points.truncate(self.points.partition_point(|point| point.step < step));
        self.points.push(Point { step, loss, learning_rate });
        for record in std::mem::take(&mut line.ranks) {
            let records = self.records.entry(record.rank).or_default();
            records.retain(|(before, _)| *before < step);
            records.push_back((step, record));
            if records.len() > KEPT {
                records.pop_front();
            }
        }
        self.validation_loss = line.validation_loss.or(self.validation_loss);
        self.last = Some(line);
    }

    /// Parses a JSON file; null if it does not exist or is being replaced.
    fn read_json(&self, name: &str) -> Result<Value, RunError> {
        let path = self.run_dir.join(name);
        match input::read(&path, MOST_BYTES) {
            Ok(text) => Ok(serde_json::from_slice(&text).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Value::Null),
            Err(source) => Err(RunError::unreadable(&path, source)),
        }
    }

    pub(crate) fn ranks(&self) -> impl Iterator<Item = &RankStep> {
        self.records.values().filter_map(|records| records.back().map(|(_, record)| record))
    }

    /// Describes how recent steps are slower than predicted; `None` if they are not.
    pub(crate) fn slowdown(&self) -> Option<String> {
        let ranks: Vec<RankStep> = self.ranks().cloned().collect();
        let mut recent: Vec<f64> = self.recent.iter().copied().collect();
        recent.sort_by(f64::total_cmp);
        let median = recent.get(recent.len() / 2)?;
        Some(self.prediction.as_ref()?.slowdown(*median, &ranks)?.to_string())
    }

    /// Returns the seconds until the last step, at the pace of the latest one; `None` if unknown or if the
    /// run has ended.
    pub(crate) fn seconds_left(&self) -> Option<f64> {
        let last = self.last.as_ref().filter(|_| self.state == State::Running)?;
        Some(last.seconds? * self.steps.saturating_sub(last.step) as f64)
    }
}

/// Returns the state of the last session in `sessions.json`.
fn state(sessions: &Value) -> State {
    let Some(last) = sessions.as_array().and_then(|all| all.last()) else { return State::Unknown };
    match (&last["ending"], last["ending"]["failed"].as_str()) {
        (Value::String(ending), _) if ending == "running" => State::Running,
        // As `plimsoll runs` names it.
        (Value::String(ending), _) if ending == "interrupted" => State::Ended("stopped".to_owned()),
        (Value::String(ending), _) => State::Ended(ending.replace('_', " ")),
        (_, Some(reason)) => State::Ended(format!("failed: {reason}")),
        (_, None) => State::Unknown,
    }
}

/// Returns sentences about the run's memory from its summary.
fn findings(summary: &Value) -> Vec<String> {
    let entries = |key: &str| summary[key].as_array().cloned().unwrap_or_default().into_iter();
    let divergences =
        entries("divergences").filter_map(|entry| serde_json::from_value::<Divergence>(entry).ok());
    let outlived = entries("outlived").filter_map(|entry| serde_json::from_value::<Outlived>(entry).ok());
    let divergences = divergences.map(|divergence| divergence.to_string());
    divergences.chain(outlived.map(|entry| entry.to_string())).collect()
}
