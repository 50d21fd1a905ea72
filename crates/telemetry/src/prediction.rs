//! Compares measured steps with the run's predicted step, and finds the phase and rank that cause a slow
//! step.

use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};
use system::file_error::FileContext;
use system::input;

use crate::error::{Result, Unreadable};
use crate::gpu::GpuLoad;
use crate::phase::Phase;
use crate::rank_step::RankStep;
use crate::run_files::{atomic_write, to_json};
use crate::units::percent;

/// Key of the predicted seconds of a step in `metrics.jsonl`.
pub const PREDICTED_SECONDS: &str = "predicted_seconds";
/// Name of the prediction's file in a run directory.
const FILE: &str = "prediction.json";
/// Maximum size of the file in bytes.
const MOST_BYTES: u64 = 1 << 26;
/// Steps above this multiple of the predicted time are slow.
const SLOW: f64 = 1.1;
/// A rank is slow above this multiple of the other ranks' compute time.
const SLOW_RANK: f64 = 1.05;
/// Ratio of measured to predicted time from which it is printed as a multiple instead of a percentage.
const MANIFOLD: f64 = 2.0;
/// A clock below this fraction of the GPU's highest clock is reported.
const LOW_CLOCK: f64 = 0.95;

/// The predicted step of a run, stored in `prediction.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Model of the assumed device.
    pub device_model: String,
    /// Source of the rates, as a phrase that precedes the device model, such as `rates measured on`.
    pub basis: String,
    /// Whether the rates were measured on such a device.
    pub is_measured: bool,
    /// Predicted seconds of a step.
    pub step_seconds: f64,
    /// Tokens (or samples) per second over all ranks.
    pub tokens_per_second: f64,
    /// Model FLOPs utilization.
    pub mfu: Option<f64>,
    /// Predicted seconds of each phase by name, for each pipeline stage's rank.
    pub stages: Vec<BTreeMap<String, f64>>,
    /// Index into `stages` for each rank.
    pub stage_of: Vec<usize>,
}

impl Prediction {
    /// Reads the prediction in `run_dir`; `None` if there is none.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn read(run_dir: &Path) -> Result<Option<Self>> {
        let path = run_dir.join(FILE);
        let text = match input::read(&path, MOST_BYTES) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text.unreadable(&path)?,
        };
        let read = serde_json::from_slice(&text);
        read.map(Some).unreadable(&path)
    }

    /// Writes the prediction into `run_dir`.
    pub fn write(&self, run_dir: &Path) -> Result<()> {
        let path = run_dir.join(FILE);
        let mut text = to_json(&path, serde_json::to_vec_pretty(self))?;
        text.push(b'\n');
        atomic_write(&path, &text)
    }

    /// Removes the prediction of an earlier session from `run_dir`.
    pub fn remove(run_dir: &Path) -> Result<()> {
        let path = run_dir.join(FILE);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => Ok(removed.context(&path, "remove it")?),
        }
    }

    /// Compares steps of `seconds` with the prediction, and the phases of `ranks` with the predicted phases.
    /// Returns the slowdown; `None` for steps that are fast enough, and without measured rates.
    #[must_use]
    pub fn slowdown(&self, seconds: f64, ranks: &[RankStep]) -> Option<Slowdown> {
        let is_slow = self.is_measured && seconds > SLOW * self.step_seconds;
        is_slow.then(|| Slowdown {
            seconds,
            predicted: self.step_seconds,
            device_model: self.device_model.clone(),
            cause: self.cause(ranks),
        })
    }

    /// Returns the seconds that a rank's phase takes beyond its prediction.
    fn excess(&self, rank: &RankStep, phase: Phase) -> Option<f64> {
        let measured = seconds_of(rank, phase)?;
        let predicted = self.predicted(rank.rank, phase)?;
        Some(measured - predicted)
    }

    fn predicted(&self, rank: usize, phase: Phase) -> Option<f64> {
        self.stages.get(*self.stage_of.get(rank)?)?.get(phase.name()).copied()
    }

    /// Returns the phase and rank that exceed the prediction most. For a waiting phase, the smallest excess
    /// of any rank is compared, because ranks also wait for a single slow rank.
    fn cause(&self, ranks: &[RankStep]) -> Option<Cause> {
        let own = ranks.iter().flat_map(|rank| {
            let phases = Phase::ALL.into_iter().filter(|phase| !phase.waits());
            phases.filter_map(move |phase| Some((self.excess(rank, phase)?, rank, phase)))
        });
        let waits = Phase::ALL.into_iter().filter(|phase| phase.waits()).filter_map(|phase| {
            let excesses = ranks.iter().filter_map(|rank| Some((self.excess(rank, phase)?, rank, phase)));
            excesses.min_by(|one, other| one.0.total_cmp(&other.0))
        });
        let (excess, rank, phase) = own.chain(waits).max_by(|one, other| one.0.total_cmp(&other.0))?;
        if excess <= 0.0 {
            return None;
        }
        Some(Cause {
            phase,
            rank: rank.rank,
            seconds: seconds_of(rank, phase)?,
            predicted: self.predicted(rank.rank, phase)?,
            others: self.others(rank, ranks),
            gpu: rank.gpu.clone(),
        })
    }

    /// Compares a rank's compute time with the median of the other ranks of its stage.
    fn others(&self, rank: &RankStep, ranks: &[RankStep]) -> Others {
        let stage = |rank: &RankStep| self.stage_of.get(rank.rank).copied();
        let others = ranks.iter().filter(|other| other.rank != rank.rank && stage(other) == stage(rank));
        let mut others: Vec<f64> = others.map(computing).filter(|seconds| *seconds > 0.0).collect();
        others.sort_by(f64::total_cmp);
        match (others.get(others.len() / 2), computing(rank)) {
            (None, _) => Others::None,
            (Some(median), own) if own > SLOW_RANK * median => Others::Faster(own / median - 1.0),
            _ => Others::Alike,
        }
    }
}

fn seconds_of(rank: &RankStep, phase: Phase) -> Option<f64> {
    // A phase that the step never enters takes no time.
    let figures = rank.phases.get(phase.name());
    let is_timed = rank.phases.values().any(|figures| figures.microseconds.is_some());
    match figures {
        Some(figures) => figures.microseconds.map(|time| time as f64 / 1e6),
        None => is_timed.then_some(0.0),
    }
}

/// Returns the seconds in which a rank computes.
fn computing(rank: &RankStep) -> f64 {
    let phases = [Phase::Forward, Phase::Backward, Phase::Update];
    phases.into_iter().filter_map(|phase| seconds_of(rank, phase)).sum()
}

/// Describes steps that take longer than predicted.
#[derive(Clone, Debug, PartialEq)]
pub struct Slowdown {
    /// Measured seconds of a step.
    pub seconds: f64,
    /// Predicted seconds of a step.
    pub predicted: f64,
    /// Model of the device that the prediction assumes.
    pub device_model: String,
    /// The phase responsible, if phases were timed.
    pub cause: Option<Cause>,
}

/// The slow phase of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    /// The phase.
    pub phase: Phase,
    /// The rank.
    pub rank: usize,
    /// Seconds of the phase on this rank.
    pub seconds: f64,
    /// Predicted seconds of the phase.
    pub predicted: f64,
    /// Comparison with the other ranks of its stage.
    pub others: Others,
    /// The load of the rank's GPU.
    pub gpu: Option<GpuLoad>,
}

/// A rank's compute time compared with the other ranks of its stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Others {
    /// The stage has no other ranks.
    None,
    /// The other ranks take about as long.
    Alike,
    /// The rank takes longer than the others' median, by this fraction of it.
    Faster(f64),
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.1} ms", 1e3 * seconds)
}

impl fmt::Display for Slowdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Slowdown { seconds, predicted, device_model, cause } = self;
        let more = match seconds / predicted {
            ratio if ratio < MANIFOLD => format!("{} more than", percent(ratio - 1.0)),
            ratio => format!("{ratio:.1} times"),
        };
        let measured = milliseconds(*seconds);
        let predicted = milliseconds(*predicted);
        write!(f, "steps take {measured}, {more} the {predicted} predicted")?;
        write!(f, " for {device_model}")?;
        cause.as_ref().map_or(Ok(()), |cause| write!(f, ": {cause}"))
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cause { phase, rank, seconds, predicted, others, gpu } = self;
        let name = phase.name();
        let measured = milliseconds(*seconds);
        write!(f, "phase {name} takes {measured} on rank {rank} instead of {}", milliseconds(*predicted))?;
        match phase {
            Phase::Inputs => return write!(f, ": its loader or its host is slow"),
            Phase::Pipeline | Phase::Exchange | Phase::Reduce => {
                return write!(f, ", and no less on others: the links between ranks are slow");
            }
            _ => {}
        }
        match others {
            Others::None => {}
            Others::Alike => write!(f, ", and about as long on the other ranks")?,
            Others::Faster(part) => {
                write!(f, ": its GPU or host is slow, {} behind the other ranks", percent(*part))?;
            }
        }
        gpu.as_ref().map_or(Ok(()), |gpu| clocks(f, gpu))
    }
}

/// Writes the GPU's clock and throttling reasons if the clock is reduced.
fn clocks(f: &mut fmt::Formatter<'_>, gpu: &GpuLoad) -> fmt::Result {
    let clocks = match (gpu.clock_mhz, gpu.max_clock_mhz) {
        (Some(clock), Some(most)) if f64::from(clock) < LOW_CLOCK * f64::from(most) => {
            format!("at {clock} of {most} MHz")
        }
        _ => String::new(),
    };
    match (gpu.throttled.as_slice(), clocks.as_str()) {
        ([], "") => Ok(()),
        ([], clocks) => write!(f, "; its GPU runs {clocks}"),
        (reasons, "") => write!(f, "; its GPU is throttled: {}", reasons.join(", ")),
        (reasons, clocks) => write!(f, "; its GPU is throttled, {clocks}: {}", reasons.join(", ")),
    }
}

#[cfg(test)]
mod tests;
