//! How a training step scales: what was measured on each number of ranks, as lines of JSON, a table and two plots.
//!
//! A [`ScalingRun`] is one training step measured on one number of ranks. Runs that differ in that number alone are a series, and
//! a run's efficiency is its tokens a second and rank over those of the series' smallest number of ranks.
//!
//! That mixes three things: what the ranks cost each other, that devices differ, and that all devices of a host at work
//! are slower than one of them is alone. So there is a baseline, [`Scaling::Alone`]: every device with a world of its own, all
//! at the same time. Against it, what remains is what the ranks cost each other. Where runs are measured in several rounds,
//! the median round of each counts.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Result, TelemetryError};
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

/// What grows with the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scaling {
    /// Nothing: the same global batch, in smaller parts.
    Strong,
    /// The global batch: the same part for each rank.
    Weak,
    /// The number of worlds of one rank each, which compute at the same time and do not talk to each other: no series, but
    /// what others are measured against.
    Alone,
}

impl Scaling {
    /// As in files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Scaling::Strong => "strong",
            Scaling::Weak => "weak",
            Scaling::Alone => "alone",
        }
    }
}

/// One measured training step: a line of JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScalingRun {
    /// The model's name.
    pub model: String,
    /// Its parameters, each counted once.
    pub parameters: u64,
    /// What computed: `cpu`, `cuda`.
    pub device: String,
    /// The device's model.
    pub device_model: String,
    /// Versions of what computes on it.
    pub libraries: String,
    /// What was computed in, such as `bf16`.
    pub precision: String,
    /// What grows with the ranks.
    pub scaling: Scaling,
    /// How many there were; of [`Scaling::Alone`], how many worlds.
    pub ranks: usize,
    /// What ranks were: `threads` or `processes`.
    pub ranks_are: String,
    /// Who added gradients over ranks: `tree` or `nccl`; `none` of [`Scaling::Alone`].
    pub reduction: String,
    /// Whether the optimizer's state was divided among them.
    pub shard_optimizer: bool,
    /// Sequences in a micro-batch.
    pub micro_batch: usize,
    /// Micro-batches in a step, over all ranks.
    pub micro_batches: usize,
    /// Tokens in a step, over all ranks.
    pub tokens: u64,
    /// Steps that were timed.
    pub steps: u64,
    /// Steps before them, at least.
    pub warm_up: u64,
    /// Seconds of steps before them, at least.
    #[serde(default)]
    pub warm_up_seconds: f64,
    /// The steps that came of both.
    #[serde(default)]
    pub warm_up_steps: u64,
    /// Of runs that are measured several times in turn, the how manieth time this is, from 1 on.
    #[serde(default = "first_round")]
    pub round: usize,
    /// The median step by rank 0's clock, from the end of a step to that of the next.
    pub step_seconds: f64,
    /// The shortest.
    pub least_seconds: f64,
    /// The longest.
    pub most_seconds: f64,
    /// The loss of the step that is the last where `warm_up_steps` is no more than `warm_up`: of the same one, however long
    /// the warm-up took.
    pub loss: f32,
    /// In rank order.
    pub by_rank: Vec<RankFigures>,
}

fn first_round() -> usize {
    1
}

/// What a run came to on one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankFigures {
    /// The rank; of [`Scaling::Alone`], the world.
    pub rank: usize,
    /// Its host.
    pub host: String,
    /// The name of its device there, such as `cuda:1`.
    #[serde(default)]
    pub device: String,
    /// The median step by its own clock, from the end of a step to that of the next; 0 where that was not asked.
    #[serde(default)]
    pub step_seconds: f64,
    /// See [`Statistic::PeakAllocatedBytes`].
    pub peak_allocated_bytes: u64,
    /// See [`Statistic::PeakReservedBytes`].
    pub peak_reserved_bytes: u64,
    /// The median step; see [`Statistic::MedianStepTime`].
    pub step_microseconds: u64,
    /// What it spends in each phase; see [`Statistic::MedianTime`].
    pub inputs_microseconds: u64,
    /// In forward passes.
    pub forward_microseconds: u64,
    /// In backward passes.
    pub backward_microseconds: u64,
    /// In exposed communication.
    pub reduce_microseconds: u64,
    /// In the update.
    pub optimizer_microseconds: u64,
}

impl RankFigures {
    /// Those among a rank's statistics, beside the median step by its clock.
    pub fn of(statistics: &RankStatistics, step_seconds: f64) -> Self {
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
            reduce_microseconds: phase(Phase::Reduce),
            optimizer_microseconds: phase(Phase::Update),
        }
    }
}

impl ScalingRun {
    /// Tokens a second in the median step; of worlds alone, the sum of each one's.
    pub fn tokens_per_second(&self) -> f64 {
        match self.scaling {
            Scaling::Alone => self.tokens_per_second_of_each().sum(),
            Scaling::Strong | Scaling::Weak => self.tokens as f64 / self.step_seconds,
        }
    }

    /// Tokens a second of each rank's part of the batch by that rank's own clock, in rank order.
    pub fn tokens_per_second_of_each(&self) -> impl Iterator<Item = f64> {
        let part = self.tokens as f64 / self.ranks as f64;
        self.by_rank.iter().map(move |rank| part / rank.step_seconds)
    }

    /// Micro-batches of a rank in a step.
    pub(crate) fn micro_batches_of_each(&self) -> usize {
        self.micro_batches / self.ranks.max(1)
    }

    /// Exposed communication of the median step in seconds, on the rank that has the most of it. 0 where there is nobody to
    /// communicate with.
    pub fn exposed_seconds(&self) -> f64 {
        let most = self.by_rank.iter().map(|rank| rank.reduce_microseconds).max().unwrap_or(0);
        if self.communicates() { most as f64 / 1e6 } else { 0.0 }
    }

    /// Whether there is another rank in a rank's world.
    pub(crate) fn communicates(&self) -> bool {
        self.ranks > 1 && self.scaling != Scaling::Alone
    }

    /// The most that a rank had allocated.
    pub fn peak_allocated(&self) -> u64 {
        self.by_rank.iter().map(|rank| rank.peak_allocated_bytes).max().unwrap_or(0)
    }

    /// The most that a rank had reserved.
    pub fn peak_reserved(&self) -> u64 {
        self.by_rank.iter().map(|rank| rank.peak_reserved_bytes).max().unwrap_or(0)
    }

    /// One line of JSON, without its end.
    pub fn to_line(&self) -> Result<String> {
        let told = |error: serde_json::Error| TelemetryError::Line { line: 0, reason: error.to_string() };
        serde_json::to_string(self).map_err(told)
    }

    /// Reads a line.
    fn from_line(text: &str) -> std::result::Result<Self, String> {
        let mut run: ScalingRun = serde_json::from_str(text).map_err(|error| error.to_string())?;
        // Lines of versions that knew of no other warm-up.
        run.warm_up_steps = run.warm_up_steps.max(run.warm_up);
        let mut seconds = vec![run.step_seconds, run.least_seconds, run.most_seconds];
        if run.scaling == Scaling::Alone {
            seconds.extend(run.by_rank.iter().map(|rank| rank.step_seconds));
        }
        if run.ranks == 0 || run.by_rank.len() != run.ranks {
            return Err(format!(
                "it has figures of {} ranks and says that there were {}",
                run.by_rank.len(),
                run.ranks
            ));
        }
        match seconds.iter().all(|seconds| seconds.is_finite() && *seconds > 0.0) {
            true => Ok(run),
            false => Err("its times are no times".to_owned()),
        }
    }
}

/// Reads runs, a line each; empty lines are passed over. Errors: the first line that is no run.
pub fn runs_of(text: &str) -> Result<Vec<ScalingRun>> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let refuse = |line| move |reason| TelemetryError::Line { line, reason };
    lines.map(|(index, line)| ScalingRun::from_line(line).map_err(refuse(index + 1))).collect()
}

/// Reads the runs of a file. Errors: it cannot be read, a line that is no run.
pub fn read_runs(path: &Path) -> Result<Vec<ScalingRun>> {
    let text = std::fs::read_to_string(path).map_err(TelemetryError::file(path, "read it"))?;
    runs_of(&text).map_err(|error| TelemetryError::In { path: path.to_owned(), source: Box::new(error) })
}
