//! Compares predicted with measured steps, over many configurations.

mod cases;

use std::collections::BTreeMap;

use plan::{DeviceRanks, FamilySeconds, PlanDevice, PlanTarget, StepTime, prepare_shapes};
use serde::{Deserialize, Serialize};
use worker::{DeviceChoice, Placement, is_out_of_memory};

use crate::error::{BenchError, Result};
use crate::options::{BenchOptions, measures_gpu, median};
use crate::step::bench_step;
pub use cases::{PredictCase, predict_cases, tiny_predict_cases};

/// A configuration's predicted and measured step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Prediction {
    /// Name of the model.
    pub model: String,
    /// Keys besides the model's sizes, each as `section.key=value`.
    pub set: Vec<String>,
    /// Predicted seconds of a step; `None` on a CPU, whose calls have no description.
    pub predicted_step_seconds: Option<f64>,
    /// Median measured seconds of a step.
    pub measured_step_seconds: f64,
    /// Families of calls, sorted by the difference between predicted and measured time, the largest first.
    pub families: Vec<FamilyDifference>,
}

/// Predicted and measured time of one family of calls in a step, each call measured alone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FamilyDifference {
    /// Name of the family.
    pub family: String,
    /// Predicted seconds.
    pub predicted_seconds: f64,
    /// Measured seconds.
    pub measured_seconds: f64,
}

impl Prediction {
    /// Returns the relative error of the prediction: predicted / measured − 1.
    #[must_use]
    pub fn error(&self) -> Option<f64> {
        Some(self.predicted_step_seconds? / self.measured_step_seconds - 1.0)
    }

    /// Returns the same measurement with a new prediction, for the device described by `target`. `None` if
    /// the configuration is not in [`predict_cases`] or does not fit.
    pub fn again(&self, target: &PlanTarget) -> Result<Option<Self>> {
        let is_of = |case: &PredictCase| case.model == self.model && case.sets == self.set;
        let Some(case) = predict_cases().into_iter().find(is_of) else { return Ok(None) };
        let predicted = match predicted(&case, target) {
            Err(error) if is_out_of_memory(&error) => return Ok(None),
            predicted => predicted?,
        };
        let measured =
            self.families.iter().map(|family| (family.family.clone(), family.measured_seconds)).collect();
        Ok(Some(Prediction::from_times(&case, predicted.as_ref(), self.measured_step_seconds, measured)))
    }

    fn from_times(
        case: &PredictCase,
        predicted: Option<&StepTime>,
        measured_step_seconds: f64,
        mut measured: BTreeMap<String, f64>,
    ) -> Self {
        let mut families = Vec::new();
        for FamilySeconds { family, seconds, .. } in predicted.iter().flat_map(|time| &time.families) {
            let measured_seconds = measured.remove(*family).unwrap_or(0.0);
            let family = (*family).to_owned();
            families.push(FamilyDifference { family, predicted_seconds: *seconds, measured_seconds });
        }
        let unpredicted = |(family, measured_seconds)| FamilyDifference {
            family,
            predicted_seconds: 0.0,
            measured_seconds,
        };
        families.extend(measured.into_iter().map(unpredicted));
        let by = |family: &FamilyDifference| (family.predicted_seconds - family.measured_seconds).abs();
        families.sort_by(|one, other| by(other).total_cmp(&by(one)));
        Prediction {
            model: case.model.to_owned(),
            set: case.sets.clone(),
            predicted_step_seconds: predicted.map(|time| time.step_seconds),
            measured_step_seconds,
            families,
        }
    }
}

/// Returns the median and the largest absolute error of predictions; `None` without predictions.
#[must_use]
pub fn absolute_errors(predictions: &[Prediction]) -> Option<(f64, f64)> {
    let errors: Vec<_> = predictions.iter().filter_map(Prediction::error).map(f64::abs).collect();
    (!errors.is_empty()).then(|| (median(&errors), errors.iter().copied().fold(0.0, f64::max)))
}

/// Returns the configurations to measure on this device.
#[must_use]
pub fn cases_of(device: DeviceChoice) -> Vec<PredictCase> {
    if measures_gpu(device) { predict_cases() } else { tiny_predict_cases() }
}

/// Predicts a step of a case on the device described by `target`, and measures it on the device of `options`.
/// `None` if it does not fit.
pub fn bench_prediction(
    case: &PredictCase,
    target: &PlanTarget,
    options: &BenchOptions,
) -> Result<Option<Prediction>> {
    let predicted = match predicted(case, target) {
        Err(error) if is_out_of_memory(&error) => return Ok(None),
        predicted => predicted?,
    };
    let measured = match bench_step(case.config()?, options) {
        Err(error) if is_out_of_memory(&error) => return Ok(None),
        measured => measured?,
    };
    let families = measured.families.iter();
    let families = families.map(|of| (of.family.to_owned(), of.milliseconds / 1e3)).collect();
    Ok(Some(Prediction::from_times(case, predicted.as_ref(), measured.median(), families)))
}

fn predicted(case: &PredictCase, target: &PlanTarget) -> Result<Option<StepTime>> {
    let config = case.config()?;
    let ranks = DeviceRanks::from_config(&config);
    let device: PlanDevice = target.device(None, ranks)?;
    let setup = prepare_shapes(config, Placement::Meta(device.description(ranks)))?;
    StepTime::predict(&setup, &device).map_err(BenchError::from)
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
            let time = predicted(&case, &target).unwrap_or_else(|error| panic!("{case:?}: {error}")).unwrap();
            assert!(time.step_seconds > 1e-3 && time.step_seconds < 10.0, "{case:?}\n{time}");
        }
    }
}
