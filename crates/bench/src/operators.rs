//! Times the operators of a configuration's step on all ranks, which are threads of this process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use telemetry::Phase;
use telemetry::operators::{AxisBytes, OperatorProfile, Wait};
use telemetry::timeline::{self, RankTimeline};

use crate::error::Result;
use crate::options::{BenchOptions, median};
use crate::ranks::measure_ranks;
use crate::rates::fastest_matmul_flops_per_second;
use crate::steps::{TimedSteps, timed_steps};
use crate::timeline::{Detail, exposed_name, record};
use config::RunConfig;
use worker::{DeviceChoice, Worker};

/// Options of [`profile_operators`].
#[derive(Clone, Debug)]
pub struct OperatorOptions {
    /// The device to measure.
    pub device: DeviceChoice,
    /// Number of measured steps.
    pub steps: u64,
    /// Minimum duration of the warm-up steps.
    pub warm_up: Duration,
    /// File for a Chrome trace of the measured steps, if requested.
    pub trace: Option<PathBuf>,
}

/// Number of steps timed without measuring operators.
const PLAIN_STEPS: u64 = 5;
/// Number of steps configured: more than any profile takes, and small enough that micro-batch numbers do not
/// overflow.
const MOST_STEPS: u64 = 1 << 32;
/// Minimum number of warm-up steps.
const WARM_UP_STEPS: u64 = 1;

/// Measures the operators of a few steps of `config` on all ranks, and writes their trace if requested.
///
/// # Errors
/// A run fails or does not fit, or the trace cannot be written.
pub fn profile_operators(mut config: RunConfig, options: &OperatorOptions) -> Result<OperatorProfile> {
    config.train.steps = MOST_STEPS;
    let shared = options.clone();
    let (_, profile) = measure_ranks(config, options.device, move |worker| measure(worker, &shared))?;
    Ok(profile)
}

/// Measures one rank. Returns the combined profile on rank 0.
fn measure(worker: &mut Worker, options: &OperatorOptions) -> Result<Option<OperatorProfile>> {
    let plain = BenchOptions {
        device: options.device,
        steps: PLAIN_STEPS,
        warm_up: WARM_UP_STEPS,
        warm_up_time: options.warm_up,
        profile: false,
        trace: None,
    };
    let TimedSteps { seconds, next, .. } = timed_steps(worker, &mut None, &plain)?;
    let detail = if options.trace.is_some() { Detail::Kernels } else { Detail::Operators };
    let own = record(worker, &mut None, (next, options.steps), detail)?;
    let Some(ranks) = timeline::gather(worker.control(), &own)? else { return Ok(None) };
    // The other ranks, which may share the processors, are finished.
    let matmuls = fastest_matmul_flops_per_second(worker.device(), worker.setup().config.precision.compute)?;
    if let Some(path) = &options.trace {
        write(path, &ranks)?;
    }
    let spans = ranks.iter().flat_map(|rank| &rank.operators);
    let sent = sent_of(&ranks, options.steps);
    let waits = waits_of(&ranks, options.steps);
    let profile = OperatorProfile {
        sent,
        waits,
        device: worker.setup().placement.description().model,
        ranks: ranks.len(),
        step_milliseconds: 1e3 * median(&seconds),
        ..OperatorProfile::new(spans, options.steps)
    };
    Ok(Some(profile.with_best_rate(matmuls)))
}

/// Returns the bytes sent per step along each axis, on the rank that sends the most.
fn sent_of(ranks: &[RankTimeline], steps: u64) -> Vec<AxisBytes> {
    let axes = ranks.first().map(|rank| &rank.sent[..]).unwrap_or_default();
    let most = |axis: &str| {
        let of_axis = ranks.iter().flat_map(|rank| &rank.sent).filter(|(other, _)| other == axis);
        of_axis.map(|(_, bytes)| bytes / steps.max(1)).max().unwrap_or(0)
    };
    axes.iter().map(|(axis, _)| AxisBytes { axis: axis.clone(), step_bytes_sent: most(axis) }).collect()
}

/// Returns the mean time per step in each phase of waiting for other ranks, on the rank that waits longest.
fn waits_of(ranks: &[RankTimeline], steps: u64) -> Vec<Wait> {
    let waiting = |rank: &RankTimeline, phase: Phase| -> f64 {
        let name = exposed_name(phase);
        rank.spans.iter().filter(|span| span.exposed && span.name == name).map(|span| span.length).sum()
    };
    let wait = |phase: Phase| {
        let microseconds = ranks.iter().map(|rank| waiting(rank, phase)).fold(0.0, f64::max);
        Wait { phase: phase.name().to_owned(), milliseconds: microseconds / 1e3 / steps.max(1) as f64 }
    };
    let waits = Phase::ALL.into_iter().filter(|phase| phase.waits()).map(wait);
    waits.filter(|wait| wait.milliseconds > 0.0).collect()
}

fn write(path: &Path, ranks: &[RankTimeline]) -> Result<()> {
    Ok(timeline::write(path, ranks)?)
}
