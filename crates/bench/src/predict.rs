//! Compares predicted with measured steps, over many configurations.

mod cases;

use plan::{DeviceRanks, MeasuredCalls, PlanDevice, PlanTarget, StepTime, prepare_shapes};
use serde::{Deserialize, Serialize};
use worker::{DeviceChoice, Placement, is_out_of_memory};

use crate::error::{BenchError, Result};
use crate::measured_step::{
    self, CallDifference, FamilyDifference, MeasuredStep, by_kind, measure, predict_calls, samples_of_step,
};
use crate::options::{BenchOptions, measures_gpu, median};
use crate::probe::probe;
pub use cases::{PredictCase, predict_cases, tiny_predict_cases};

/// A configuration's predicted and measured step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Prediction {
    /// Name of the model.
    pub model: String,
    /// Keys besides the model's sizes, each as `section.key=value`.
    pub set: Vec<String>,
    /// Model of the measured device.
    #[serde(default)]
    pub device_model: String,
    /// Predicted seconds of a step; `None` on a CPU, whose calls have no description.
    pub predicted_step_seconds: Option<f64>,
    /// Median measured seconds of a step.
    pub measured_step_seconds: f64,
    /// Families of calls, or phases of a step of several ranks, sorted by the difference between
    /// predicted and measured time, the largest first.
    pub families: Vec<FamilyDifference>,
    /// Calls by kind and size; empty unless requested, and for several ranks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<CallDifference>,
}

impl Prediction {
    /// Returns the relative error of the prediction: predicted / measured − 1.
    #[must_use]
    pub fn error(&self) -> Option<f64> {
        Some(self.predicted_step_seconds? / self.measured_step_seconds - 1.0)
    }

    /// Returns the same measurement with a new prediction, for the device described by `target`. Families
    /// keep the predicted times of the first prediction, calls do not. `None` if the configuration is unknown
    /// or does not fit.
    pub fn again(&self, target: &PlanTarget) -> Result<Option<Self>> {
        let Some(case) = PredictCase::again(&self.model, &self.set) else { return Ok(None) };
        let (predicted, device) = match predict(&case, target) {
            Err(error) if is_out_of_memory(&error) => return Ok(None),
            predicted => predicted?,
        };
        let mut calls = self.calls.clone();
        if !calls.is_empty() {
            let config = case.config()?;
            let description = device.description(DeviceRanks::from_config(&config));
            let setup = prepare_shapes(config, Placement::Meta(description))?;
            predict_calls(&mut calls, &setup, &device)?;
        }
        Ok(Some(Prediction {
            predicted_step_seconds: predicted.map(|time| time.step_seconds),
            calls,
            ..self.clone()
        }))
    }

    fn new(case: &PredictCase, predicted: Option<&StepTime>, measured: MeasuredStep) -> Self {
        let MeasuredStep { device_model, seconds, mut families, calls } = measured;
        let by = |family: &FamilyDifference| (family.predicted_seconds - family.measured_seconds).abs();
        families.sort_by(|one, other| by(other).total_cmp(&by(one)));
        Prediction {
            model: case.model.clone(),
            set: case.sets.clone(),
            device_model,
            predicted_step_seconds: predicted.map(|time| time.step_seconds),
            measured_step_seconds: seconds,
            families,
            calls,
        }
    }
}

/// Returns the measured calls of steps on a device of this model, for its description.
///
/// # Errors
/// A step was measured on another model, or without its calls.
pub fn measured_calls(device: &PlanDevice, steps: &[Prediction]) -> Result<Vec<MeasuredCalls>> {
    let mut all = Vec::new();
    for step in steps {
        if step.device_model != device.model {
            let text = format!(
                "--add: a step of {} was measured on \"{}\", and the description is of \"{}\"",
                step.model, step.device_model, device.model
            );
            return Err(BenchError::Refused(text));
        }
        if step.calls.is_empty() {
            let text = "--add: a step has no calls: measure it with `plimsoll bench predict --json --calls` \
                        on one rank";
            return Err(BenchError::Refused(text.to_owned()));
        }
        all.extend(samples_of_step(&step.calls, step.measured_step_seconds, device));
    }
    Ok(by_kind(all))
}

/// Absolute errors of predictions, relative to the measured times.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PredictionErrors {
    /// Median.
    #[serde(rename = "median_error")]
    pub median: f64,
    /// 95th percentile.
    #[serde(rename = "error_of_19_in_20")]
    pub most: f64,
    /// Largest.
    #[serde(rename = "largest_error")]
    pub largest: f64,
}

impl PredictionErrors {
    /// Returns the errors of `predictions`; `None` without predictions.
    #[must_use]
    pub fn new(predictions: &[Prediction]) -> Option<Self> {
        let mut errors: Vec<_> = predictions.iter().filter_map(Prediction::error).map(f64::abs).collect();
        errors.sort_by(f64::total_cmp);
        let most = *errors.get((errors.len() * 19).div_ceil(20).checked_sub(1)?)?;
        Some(PredictionErrors { median: median(&errors), most, largest: *errors.last()? })
    }
}

/// Returns the configurations to measure on this device.
#[must_use]
pub fn cases_of(device: DeviceChoice) -> Vec<PredictCase> {
    if measures_gpu(device) { predict_cases() } else { tiny_predict_cases() }
}

/// Predicts a step of a case on the device described by `target`, and measures it on the device of `options`.
/// With `probes`, its calls are timed before it is predicted. `None` if it does not fit, and for a random one
/// that Plimsoll refuses.
pub fn bench_prediction(
    case: &PredictCase,
    target: &PlanTarget,
    probes: bool,
    options: &BenchOptions,
) -> Result<Option<Prediction>> {
    let (mut predicted, mut device) = match predict(case, target) {
        Err(error) if is_out_of_memory(&error) || case.is_random() => return Ok(None),
        predicted => predicted?,
    };
    if probes {
        let config = case.config()?;
        device = probe(&config, &device)?.added_to(device);
        predicted = measured_step::predict(config, &device)?;
    }
    match measure(case.config()?, predicted.as_ref(), &device, options) {
        Err(error) if is_out_of_memory(&error) => Ok(None),
        measured => Ok(Some(Prediction::new(case, predicted.as_ref(), measured?))),
    }
}

/// Returns the predicted step, `None` on a CPU, and the device of the prediction.
fn predict(case: &PredictCase, target: &PlanTarget) -> Result<(Option<StepTime>, PlanDevice)> {
    let config = case.config()?;
    let device: PlanDevice = target.device(None, DeviceRanks::from_config(&config))?;
    Ok((measured_step::predict(config, &device)?, device))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses an H200, which has memory for all.
    #[test]
    fn every_configuration_has_a_prediction() {
        vision::register().unwrap();
        let target = PlanTarget::from_argument("h200").unwrap();
        for case in predict_cases() {
            let (time, _) = predict(&case, &target).unwrap_or_else(|error| panic!("{case:?}: {error}"));
            let time = time.unwrap();
            assert!(time.step_seconds > 1e-3 && time.step_seconds < 10.0, "{case:?}\n{time}");
        }
    }
}
