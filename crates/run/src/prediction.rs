//! Prediction of a run's step time, made at the start and compared with measured steps.

use std::collections::BTreeMap;
use std::path::Path;
use std::task::Poll;

use collective::Axis;
use config::RunConfig;
use plan::{Basis, DeviceRanks, PlanDevice, PlanTarget, StepParts, StepTime, prepare_known};
use telemetry::{Phase, Prediction, RankStep, Slowdown};
use worker::{Placement, Setup};

use crate::error::{Result, RunError};

/// Minimum number of timed steps before comparing with the prediction.
const FEWEST_STEPS: usize = 3;

/// Checks `telemetry.device` before anything is allocated.
///
/// # Errors
/// The name is unknown, the file cannot be read or is invalid, or the description is of a CPU.
pub fn check(config: &RunConfig) -> Result<()> {
    described(config).map(drop)
}

/// Returns the device named by `telemetry.device`; `None` if it is empty.
fn described(config: &RunConfig) -> Result<Option<PlanDevice>> {
    let name = &config.telemetry.device;
    if name.is_empty() {
        return Ok(None);
    }
    let refused = |why: &str| {
        let origin = config.origins.find("telemetry.device");
        RunError::Refused(format!("{origin}: telemetry.device = {name:?}: {why}"))
    };
    let target = match PlanTarget::from_argument(name) {
        Ok(target @ (PlanTarget::File(_) | PlanTarget::Named(_))) => target,
        _ => {
            let names = PlanDevice::names().collect::<Vec<_>>().join(", ");
            return Err(refused(&format!("write a file of `plimsoll plan --describe`, or {names}")));
        }
    };
    let device =
        target.device(None, DeviceRanks::from_config(config)).map_err(|error| refused(&error.to_string()))?;
    if !device.is_gpu() {
        return Err(refused("it describes a CPU, whose steps are not predicted"));
    }
    Ok(Some(device))
}

/// Predicts the step time and writes the prediction to `run_dir`, or removes an earlier session's file if
/// there is none. A failure is logged and does not end the run.
pub(crate) fn predict(setup: &Setup, run_dir: &Path) -> Option<Prediction> {
    let predicted = predicted(setup).and_then(|prediction| {
        match &prediction {
            Some(prediction) => prediction.write(run_dir)?,
            None => Prediction::remove(run_dir)?,
        }
        Ok(prediction)
    });
    predicted.unwrap_or_else(|error| {
        tracing::warn!("steps are not predicted: {error}");
        None
    })
}

/// Predicts the time of a setup's step; `None` if its device has no description, or a step has too many
/// passes.
///
/// # Errors
/// `telemetry.device` is unknown or invalid, or planning fails.
pub fn predicted_step(setup: &Setup) -> Result<Option<StepTime>> {
    let Some(device) = device(setup)? else { return Ok(None) };
    let config = &setup.config;
    let description = device.description(DeviceRanks::from_config(config));
    let samples = setup.dataset.sample_sizes();
    let planned = prepare_known((**config).clone(), Placement::Meta(description), Some(&samples))?;
    let planned = planned.with_hook(setup.hook.clone())?;
    let Some(time) = StepTime::predict(&planned, &device)? else { return Ok(None) };
    Ok(Some(time.with_mfu(&planned, &device)?))
}

fn predicted(setup: &Setup) -> Result<Option<Prediction>> {
    let Some(time) = predicted_step(setup)? else { return Ok(None) };
    let prediction = prediction(&setup.config, &time)?;
    tracing::info!(
        "predicted: {:.1} ms a step, by {} {}",
        1e3 * prediction.step_seconds,
        prediction.basis,
        prediction.device_model
    );
    Ok(Some(prediction))
}

/// Returns the device to predict for: the configured one, or else the run's GPU if a description of it
/// exists.
fn device(setup: &Setup) -> Result<Option<PlanDevice>> {
    if let Some(device) = described(&setup.config)? {
        return Ok(Some(device));
    }
    let Placement::Cuda(gpus) = &setup.placement else { return Ok(None) };
    let device = PlanDevice::gpu(&gpus.description)?;
    if device.rates.is_none() {
        tracing::info!(
            "steps are not predicted: {} is not described; `plimsoll plan --describe FILE.toml` measures it",
            device.model
        );
        return Ok(None);
    }
    Ok(Some(device))
}

/// Converts a predicted time to the format of the run's files.
fn prediction(config: &RunConfig, time: &StepTime) -> Result<Prediction> {
    let grid = config.parallel.grid();
    let stage = |rank| Ok(grid.seen_from(rank)?.coordinate(Axis::Pipeline));
    let basis = match time.basis {
        Basis::MeasuredCalls => "calls measured on",
        Basis::MeasuredRates => "rates measured on",
        Basis::DataSheet => "the data sheet of",
        Basis::AnotherModel => "the rates of another model instead of",
    };
    Ok(Prediction {
        device_model: time.device_model.clone(),
        basis: basis.to_owned(),
        is_measured: time.basis.is_measured(),
        step_seconds: time.step_seconds,
        tokens_per_second: time.tokens_per_second,
        mfu: time.mfu,
        stages: time.stages.iter().map(phases).collect(),
        stage_of: (0..config.world_size()).map(stage).collect::<Result<_>>()?,
    })
}

/// Converts the predicted parts of a step to the phases that runs measure, in seconds. A wait for the host is
/// added to the phase in which it occurs, usually a pass.
fn phases(parts: &StepParts) -> BTreeMap<String, f64> {
    let passes = parts.forward_seconds + parts.backward_seconds;
    let with_host = |seconds: f64| match passes > 0.0 {
        true => seconds + parts.host_seconds * seconds / passes,
        false => seconds,
    };
    let seconds = |phase: Phase| match phase {
        Phase::Inputs => parts.inputs_seconds,
        Phase::Forward => with_host(parts.forward_seconds),
        Phase::Backward => with_host(parts.backward_seconds),
        Phase::Pipeline => parts.pipeline_seconds,
        Phase::Exchange => parts.exchange_seconds(),
        Phase::Reduce => parts.reduction_seconds,
        Phase::Update => parts.optimizer_seconds + parts.offload_seconds,
    };
    Phase::ALL.into_iter().map(|phase| (phase.name().to_owned(), seconds(phase))).collect()
}

/// Compares the step times of a session with the prediction.
#[derive(Debug)]
pub(crate) struct Comparison {
    pub(crate) prediction: Prediction,
    /// Seconds of the steps not yet compared.
    recent: Vec<f64>,
}

impl Comparison {
    pub(crate) fn new(prediction: Prediction) -> Self {
        Comparison { prediction, recent: Vec::new() }
    }

    /// Adds a step and, if there are any, the records of all ranks. Pending until there are records and
    /// enough timed steps; then the slowdown of the steps so far, if they are slow.
    pub(crate) fn add(&mut self, seconds: Option<f64>, ranks: &[RankStep]) -> Poll<Option<Slowdown>> {
        self.recent.extend(seconds);
        if ranks.is_empty() || self.recent.len() < FEWEST_STEPS {
            return Poll::Pending;
        }
        let mut recent = std::mem::take(&mut self.recent);
        recent.sort_by(f64::total_cmp);
        let Some(median) = recent.get(recent.len() / 2) else { return Poll::Pending };
        Poll::Ready(self.prediction.slowdown(*median, ranks))
    }
}
