//! Scaling of a training step with the number of ranks: measured runs as JSON lines, a table and two plots.
//!
//! A [`ScalingRun`] is a training step measured on some number of ranks. Runs that differ only in that number
//! form a series. A run's efficiency is its throughput per rank relative to the series' smallest run.
//!
//! Efficiency mixes three effects: the cost of communication, differences between devices, and the slowdown
//! of a host's devices when all are busy. The baseline [`Scaling::Alone`] isolates the first: every device
//! trains alone, all at the same time, so a run relative to it shows only the cost of communication. If runs
//! are measured in several rounds, each is represented by its median round.

use std::path::Path;

use serde::{Deserialize, Serialize};
use system::input;

use crate::error::{Result, TelemetryError, Unreadable};
use crate::phase::Phase;
use crate::rank_statistics::RankStatistics;
use crate::statistic::Statistic;

mod alone;
mod plot;
mod rounds;
mod series;
mod table;

pub use plot::{efficiency_plot, memory_plot};
pub use table::scaling_table;

system::names! {
    /// The quantity that grows with the number of ranks.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Scaling {
        /// Strong scaling: nothing grows, and the global batch stays the same.
        Strong = "strong",
        /// Weak scaling: the global batch grows, and the batch per rank stays the same.
        Weak = "weak",
        /// The number of independent single-rank worlds that compute at the same time. A baseline for the
        /// other series, not a series itself.
        Alone = "alone",
    }
}

/// A measured training step, stored as one line of JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScalingRun {
    /// Name of the model.
    pub model: String,
    /// Number of parameters, with shared ones counted once.
    pub parameters: u64,
    /// Kind of device: `cpu` or `cuda`.
    pub device: String,
    /// Model of the device.
    pub device_model: String,
    /// Versions of the compute libraries.
    pub libraries: String,
    /// Compute dtype, such as `bf16`.
    pub precision: String,
    /// Quantity that grows with the number of ranks.
    pub scaling: Scaling,
    /// Number of ranks; for [`Scaling::Alone`], number of worlds.
    pub ranks: usize,
    /// `threads` or `processes`.
    pub ranks_are: String,
    /// How gradients are reduced over ranks: `tree` or `nccl`; `none` for [`Scaling::Alone`].
    pub reduction: String,
    /// Whether the optimizer state was sharded over ranks.
    pub shard_optimizer: bool,
    /// Number of sequences in a micro-batch.
    pub micro_batch: usize,
    /// Number of micro-batches in a step, over all ranks.
    pub micro_batches: usize,
    /// Number of tokens (or samples, or images) in a step, over all ranks.
    pub tokens: u64,
    /// Unit of the throughput: tokens/s, samples/s or images/s.
    #[serde(default = "tokens_per_second")]
    pub unit: String,
    /// Number of timed steps.
    pub steps: u64,
    /// Minimum number of warm-up steps.
    pub warm_up: u64,
    /// Minimum duration of the warm-up in seconds.
    #[serde(default)]
    pub warm_up_seconds: f64,
    /// Number of warm-up steps actually run.
    #[serde(default)]
    pub warm_up_steps: u64,
    /// Round of the measurement, from 1.
    #[serde(default = "first_round")]
    pub round: usize,
    /// Median step time by rank 0's clock, in seconds from the end of one step to the end of the next.
    pub step_seconds: f64,
    /// Predicted step time in seconds, if the device has a description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_step_seconds: Option<f64>,
    /// Shortest step time, in seconds.
    pub least_seconds: f64,
    /// Longest step time, in seconds.
    pub most_seconds: f64,
    /// Loss of step `warm_up + steps`, independent of the duration of the warm-up.
    pub loss: f32,
    /// Measurements of each rank, in rank order.
    pub by_rank: Vec<RankFigures>,
}

fn first_round() -> usize {
    1
}

fn tokens_per_second() -> String {
    "tokens/s".to_owned()
}

/// One rank's measurements of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankFigures {
    /// Number of the rank; for [`Scaling::Alone`], of the world.
    pub rank: usize,
    /// Name of the rank's host.
    pub host: String,
    /// Name of the rank's device, such as `cuda:1`.
    #[serde(default)]
    pub device: String,
    /// Median step time by the rank's own clock, in seconds; 0 if not measured.
    #[serde(default)]
    pub step_seconds: f64,
    /// See [`Statistic::PeakAllocatedBytes`].
    pub peak_allocated_bytes: u64,
    /// See [`Statistic::PeakReservedBytes`].
    pub peak_reserved_bytes: u64,
    /// See [`Statistic::MedianStepTime`].
    pub step_microseconds: u64,
    /// Median time of [`Phase::Inputs`]; see [`Statistic::MedianTime`].
    pub inputs_microseconds: u64,
    /// Median time of [`Phase::Forward`].
    pub forward_microseconds: u64,
    /// Median time of [`Phase::Backward`].
    pub backward_microseconds: u64,
    /// Median time of [`Phase::Exchange`].
    #[serde(default)]
    pub exchange_microseconds: u64,
    /// Median time of [`Phase::Reduce`].
    pub reduce_microseconds: u64,
    /// Median time of [`Phase::Update`].
    pub optimizer_microseconds: u64,
}

impl RankFigures {
    /// Collects the figures from a rank's statistics and its median step time by its own clock, in seconds.
    pub fn from_statistics(statistics: &RankStatistics, step_seconds: f64) -> Self {
        let phase = |phase| statistics.get(Statistic::MedianTime(phase));
        RankFigures {
            rank: statistics.rank,
            host: statistics.host.clone(),
            device: statistics.device.clone(),
            step_seconds,
            peak_allocated_bytes: statistics.get(Statistic::PeakAllocatedBytes),
            peak_reserved_bytes: statistics.get(Statistic::PeakReservedBytes),
            step_microseconds: statistics.get(Statistic::MedianStepTime),
            inputs_microseconds: phase(Phase::Inputs),
            forward_microseconds: phase(Phase::Forward),
            backward_microseconds: phase(Phase::Backward),
            exchange_microseconds: phase(Phase::Exchange),
            reduce_microseconds: phase(Phase::Reduce),
            optimizer_microseconds: phase(Phase::Update),
        }
    }
}

impl ScalingRun {
    /// Returns the tokens per second of the median step; for [`Scaling::Alone`], summed over the worlds.
    pub fn tokens_per_second(&self) -> f64 {
        match self.scaling {
            Scaling::Alone => self.tokens_per_second_of_each().sum(),
            Scaling::Strong | Scaling::Weak => self.tokens as f64 / self.step_seconds,
        }
    }

    /// Returns the tokens per second of each rank by its own clock, in rank order.
    pub fn tokens_per_second_of_each(&self) -> impl Iterator<Item = f64> {
        let part = self.tokens as f64 / self.ranks as f64;
        self.by_rank.iter().map(move |rank| part / rank.step_seconds)
    }

    /// Returns the number of micro-batches per rank in a step.
    pub(crate) fn micro_batches_of_each(&self) -> usize {
        self.micro_batches / self.ranks.max(1)
    }

    /// Returns the exposed communication of the median step in seconds, on the rank with the most; 0 without
    /// communication.
    pub fn exposed_seconds(&self) -> f64 {
        let exposed = |rank: &RankFigures| rank.exchange_microseconds + rank.reduce_microseconds;
        let most = self.by_rank.iter().map(exposed).max().unwrap_or(0);
        if self.communicates() { most as f64 / 1e6 } else { 0.0 }
    }

    pub(crate) fn communicates(&self) -> bool {
        self.ranks > 1 && self.scaling != Scaling::Alone
    }

    /// Returns the largest peak of allocated bytes of any rank.
    pub fn peak_allocated(&self) -> u64 {
        self.by_rank.iter().map(|rank| rank.peak_allocated_bytes).max().unwrap_or(0)
    }

    /// Returns the largest peak of reserved bytes of any rank.
    pub fn peak_reserved(&self) -> u64 {
        self.by_rank.iter().map(|rank| rank.peak_reserved_bytes).max().unwrap_or(0)
    }

    /// Returns the run as a JSON line, without the line feed.
    pub fn to_line(&self) -> Result<String> {
        let line_error =
            |error: serde_json::Error| TelemetryError::Line { line: 0, reason: error.to_string() };
        serde_json::to_string(self).map_err(line_error)
    }

    /// Parses a run from a JSON line.
    fn from_line(text: &str) -> std::result::Result<Self, String> {
        let mut run: ScalingRun = serde_json::from_str(text).map_err(|error| error.to_string())?;
        // Older versions did not write `warm_up_steps`; in their runs it equals `warm_up`.
        run.warm_up_steps = run.warm_up_steps.max(run.warm_up);
        let mut seconds = vec![run.step_seconds, run.least_seconds, run.most_seconds];
        if run.scaling == Scaling::Alone {
            seconds.extend(run.by_rank.iter().map(|rank| rank.step_seconds));
        }
        if run.ranks == 0 || run.by_rank.len() != run.ranks {
            return Err(format!(
                "it has figures of {} ranks but `ranks` is {}",
                run.by_rank.len(),
                run.ranks
            ));
        }
        match seconds.iter().all(|seconds| seconds.is_finite() && *seconds > 0.0) {
            true => Ok(run),
            false => Err("its times are not all positive".to_owned()),
        }
    }
}

/// Parses one run per line, skipping empty lines.
///
/// # Errors
/// A line is not a run; the error names the first one.
pub fn parse_runs(text: &str) -> Result<Vec<ScalingRun>> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let refuse = |line| move |reason| TelemetryError::Line { line, reason };
    lines.map(|(index, line)| ScalingRun::from_line(line).map_err(refuse(index + 1))).collect()
}

/// Maximum size of a file of runs, in bytes.
const MOST_BYTES: u64 = 64 << 20;

/// Reads a file of runs.
///
/// # Errors
/// The file cannot be read, or a line is not a run.
pub fn read_runs(path: &Path) -> Result<Vec<ScalingRun>> {
    let text = input::read_text(path, MOST_BYTES).unreadable(path)?;
    parse_runs(&text).map_err(|error| TelemetryError::In { path: path.to_owned(), source: Box::new(error) })
}
