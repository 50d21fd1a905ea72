//! The operators of a configuration's step, timed on all its ranks, which are threads of this process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use telemetry::operators::OperatorProfile;
use telemetry::timeline::{self, RankTimeline};

use crate::error::Result;
use crate::options::{BenchOptions, median};
use crate::ranks::measure_ranks;
use crate::rates::fastest_matmul_flops_per_second;
use crate::steps::{TimedSteps, timed_steps};
use crate::timeline::{Detail, record};
use config::RunConfig;
use worker::{DeviceChoice, Worker};

/// Options of [`profile_operators`].
#[derive(Clone, Debug)]
pub struct OperatorOptions {
    /// The device.
    pub device: DeviceChoice,
    /// Number of measured steps.
    pub steps: u64,
    /// Minimum duration of the steps before them.
    pub warm_up: Duration,
    /// File for the Chrome trace of the measured steps.
    pub trace: Option<PathBuf>,
}

/// Steps that are timed without measuring operators.
const PLAIN_STEPS: u64 = 5;
/// More steps than a profile takes, whatever the warm-up; numbers of micro-batches stay in range.
const MOST_STEPS: u64 = 1 << 32;
/// Fewest steps before anything is timed.
const WARM_UP_STEPS: u64 = 1;

/// Measures the operators of a few steps of `config` on all ranks, and writes their trace if asked.
///
/// # Errors
/// Errors of a run; a refusal if it does not fit; the trace cannot be written.
pub fn profile_operators(mut config: RunConfig, options: &OperatorOptions) -> Result<OperatorProfile> {
    config.train.steps = MOST_STEPS;
    let shared = options.clone();
    let (_, profile) = measure_ranks(config, options.device, move |worker| measure(worker, &shared))?;
    Ok(profile)
}

/// Measures one rank. Returns the profile of all on rank 0.
fn measure(worker: &mut Worker, options: &OperatorOptions) -> Result<Option<OperatorProfile>> {
    let plain = BenchOptions {
        device: options.device,
        steps: PLAIN_STEPS,
        warm_up: WARM_UP_STEPS,
        warm_up_time: options.warm_up,
        trace: None,
    };
    let TimedSteps { seconds, next, .. } = timed_steps(worker, &mut None, &plain)?;
    let detail = if options.trace.is_some() { Detail::Kernels } else { Detail::Operators };
    let own = record(worker, &mut None, (next, options.steps), detail)?;
    let Some(ranks) = timeline::gather(worker.control(), &own)? else { return Ok(None) };
    // The other ranks, which may share the processors, are done.
    let matmuls = fastest_matmul_flops_per_second(worker.device(), worker.setup().config.precision.compute)?;
    if let Some(path) = &options.trace {
        write(path, &ranks)?;
    }
    let spans = ranks.iter().flat_map(|rank| &rank.operators);
    let profile = OperatorProfile {
        device: worker.setup().placement.description().model,
        ranks: ranks.len(),
        step_milliseconds: 1e3 * median(&seconds),
        ..OperatorProfile::new(spans, options.steps)
    };
    Ok(Some(profile.with_best_rate(matmuls)))
}

fn write(path: &Path, ranks: &[RankTimeline]) -> Result<()> {
    Ok(timeline::write(path, ranks)?)
}
