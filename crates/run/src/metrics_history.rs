//! Reads the steps of a run from `metrics.jsonl`, line by line.

use std::io::{Error, ErrorKind};
use std::path::Path;
use std::task::Poll;

use serde::Deserialize;
use serde_json::Value;
use system::lines::Lines;
use telemetry::report::StepPoint;
use telemetry::units::{counted, grouped};
use telemetry::{EXPERT_LOADS, ExpertLoads, PREDICTED_SECONDS, Prediction, RankStep};

use crate::error::{Result, RunError};
use crate::prediction::Comparison;
use crate::run_directory::METRICS;

/// Maximum length of a line in bytes: the records of some ten thousand ranks.
const MOST_LINE: u64 = 64 << 20;
/// Maximum number of steps read. Each takes about 200 bytes of memory.
const MOST_STEPS: usize = 4_000_000;

/// (number of timed steps, total seconds).
pub(crate) type Timed = (usize, f64);

/// The steps of a run, read from `metrics.jsonl`.
#[derive(Debug, Default)]
pub(crate) struct MetricsHistory {
    pub(crate) points: Vec<StepPoint>,
    pub(crate) timed: Timed,
    /// Step of the last expert loads, and these loads.
    pub(crate) expert_loads: (u64, Vec<ExpertLoads>),
    /// A sentence about how the last fully recorded steps were slower than predicted.
    pub(crate) slowdown: Option<String>,
    /// Number of complete lines that do not parse as a step and are skipped.
    damaged: u64,
}

impl MetricsHistory {
    /// Reads the metrics of the run in `run_dir` and compares its steps with `prediction`; empty if there is
    /// no file. An incomplete last line, left by a killed run, is skipped.
    ///
    /// # Errors
    /// The file cannot be read, or is too large.
    pub(crate) fn read(run_dir: &Path, prediction: Option<&Prediction>) -> Result<Self> {
        let path = run_dir.join(METRICS);
        let failed = |source| RunError::unreadable(&path, source);
        let mut lines = match Lines::open(&path, MOST_LINE) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            lines => lines.map_err(failed)?,
        };
        let mut history = Self::default();
        let mut comparison = prediction.cloned().map(Comparison::new);
        while let Some(line) = lines.next_line().map_err(failed)? {
            let parsed = serde_json::from_slice::<Value>(line.text).ok();
            match parsed.filter(|parsed| parsed["step"].is_u64()) {
                Some(parsed) => history.add(&parsed, comparison.as_mut()),
                None => history.damaged += u64::from(line.is_complete),
            }
            if history.points.len() > MOST_STEPS {
                let text =
                    format!("it has more than {} steps, which is the limit", grouped(MOST_STEPS as u64));
                return Err(failed(Error::new(ErrorKind::FileTooLarge, text)));
            }
        }
        Ok(history)
    }

    fn add(&mut self, line: &Value, comparison: Option<&mut Comparison>) {
        let number = |key: &str| line[key].as_f64().filter(|number| number.is_finite());
        let step = line["step"].as_u64().unwrap_or_default();
        let seconds = number("seconds");
        if let Some(seconds) = seconds {
            self.timed = (self.timed.0 + 1, self.timed.1 + seconds);
        }
        let predicted = || Some(seconds? / number(PREDICTED_SECONDS)? * number("tokens_per_second")?);
        if let Some(loads) = line.get(EXPERT_LOADS) {
            self.expert_loads = (step, ExpertLoads::of_json(loads));
        }
        if let Some(comparison) = comparison {
            let ranks = line.get("ranks").map(Vec::<RankStep>::deserialize);
            let ranks = ranks.transpose().ok().flatten().unwrap_or_default();
            if let Poll::Ready(slowdown) = comparison.add(seconds, &ranks) {
                self.slowdown = slowdown.map(|slowdown| capitalized(&slowdown.to_string()));
            }
        }
        self.points.push(StepPoint {
            step,
            loss: number("loss"),
            validation_loss: number("validation_loss"),
            reward_accuracy: ["reward_accuracy", "validation_reward_accuracy"].map(number),
            reward_margin: ["reward_margin", "validation_reward_margin"].map(number),
            tokens_per_second: number("tokens_per_second"),
            predicted_tokens_per_second: predicted(),
            gradient_norm: number("gradient_norm"),
            learning_rate: number("learning_rate"),
            // Numbers that are not finite are `null` in JSON.
            is_finite: !["loss", "gradient_norm"].iter().any(|key| line.get(key).is_some_and(Value::is_null)),
        });
    }

    /// Returns a sentence with the number of skipped lines; `None` if there are none.
    pub(crate) fn damage(&self, run_dir: &Path) -> Option<String> {
        let lines = || counted(self.damaged, "line");
        let verb = if self.damaged == 1 { "is" } else { "are" };
        (self.damaged > 0)
            .then(|| format!("{}: {} {verb} damaged and left out", run_dir.join(METRICS).display(), lines()))
    }
}

/// Returns `text` as a sentence: capitalized, with a full stop.
fn capitalized(text: &str) -> String {
    format!("{}{}.", text[..1].to_uppercase(), &text[1..])
}
