//! The prediction of a run's step, made at the start, and its comparison with the steps.

use std::collections::BTreeMap;
use std::path::Path;

use collective::Axis;
use config::RunConfig;
use plan::{Basis, DeviceRanks, PlanDevice, PlanTarget, StepParts, StepTime, prepare_known};
use telemetry::{Phase, Prediction, RankStep, Slowdown};
use worker::{Placement, Setup};

use crate::error::{Result, RunError};

/// Fewest timed steps that are compared with the prediction.
const FEWEST_STEPS: usize = 3;

/// Checks `telemetry.device` before anything is allocated.
///
/// # Errors
/// An unknown name, a file that cannot be read or is invalid, a description of a CPU.
pub fn check(config: &RunConfig) -> Result<()> {
    described(config).map(drop)
}

/// Returns the device that the configuration names; `None` if it names none.
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
    let device = target.device(None, DeviceRanks::of(config)).map_err(|error| refused(&error.to_string()))?;
    if !device.is_gpu() {
        return Err(refused("it describes a CPU, whose steps are not predicted"));
    }
    Ok(Some(device))
}

/// Predicts a step of the run and keeps the prediction in `run_dir`. An earlier session's prediction is
/// removed if there is none. A failure is logged, and ends no run.
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

/// Returns the predicted time of a setup's step; `None` if its device is not described, or a step has too
/// many passes.
///
/// # Errors
/// An unknown or invalid `telemetry.device`; errors of planning.
pub fn predicted_step(setup: &Setup) -> Result<Option<StepTime>> {
    let Some(device) = device(setup)? else { return Ok(None) };
    let config = &setup.config;
    let description = device.description(DeviceRanks::of(config));
    let samples = setup.dataset.sample_sizes();
    let planned = prepare_known((**config).clone(), Placement::Meta(description), Some(&samples))?;
    let planned = planned.with_hook(setup.hook.clone())?;
    let Some(time) = StepTime::of(&planned, &device)? else { return Ok(None) };
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

/// Returns the device of the predictions: the one that the configuration names, or else the run's GPU if it
/// is described.
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

/// Returns a predicted time as the files of a run have it.
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

/// Returns the parts of a step as the phases that runs measure. A wait for the host is part of the phase in
/// which it occurs, mostly of a pass.
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

/// Compares the steps of a session with their prediction.
#[derive(Debug)]
pub(crate) struct Comparison {
    pub(crate) prediction: Prediction,
    /// Seconds of the steps that have not been compared.
    recent: Vec<f64>,
}

impl Comparison {
    pub(crate) fn new(prediction: Prediction) -> Self {
        Comparison { prediction, recent: Vec::new() }
    }

    /// Adds a step with the records of all ranks, if there are any. Returns the comparison of the steps so
    /// far, if there are records and enough steps: how they are slow, or `None`.
    pub(crate) fn add(&mut self, seconds: Option<f64>, ranks: &[RankStep]) -> Option<Option<Slowdown>> {
        self.recent.extend(seconds);
        if ranks.is_empty() || self.recent.len() < FEWEST_STEPS {
            return None;
        }
        let mut recent = std::mem::take(&mut self.recent);
        recent.sort_by(f64::total_cmp);
        let median = recent.get(recent.len() / 2)?;
        Some(self.prediction.slowdown(*median, ranks))
    }
}
