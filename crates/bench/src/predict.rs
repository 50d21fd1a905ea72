//! Predicted steps against measured ones, over many configurations.

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
    /// Keys beside those of the model.
    pub set: Vec<String>,
    /// Predicted seconds; `None` on a CPU, whose calls no description has.
    pub predicted_step_seconds: Option<f64>,
    /// Median of the measured seconds.
    pub measured_step_seconds: f64,
    /// Families of calls, those first whose predicted time differs most from the measured one.
    pub families: Vec<FamilyDifference>,
}

/// The times of a family of calls in a step, each call alone.
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
    /// The predicted seconds by which the prediction is off, as a part of the measured ones.
    #[must_use]
    pub fn error(&self) -> Option<f64> {
        Some(self.predicted_step_seconds? / self.measured_step_seconds - 1.0)
    }

    /// Returns the same measured step with a prediction for the device that `target` describes; `None` if its
    /// configuration is none of [`predict_cases`] or does not fit.
    pub fn again(&self, target: &PlanTarget) -> Result<Option<Self>> {
        let is_of = |case: &PredictCase| case.model == self.model && case.sets == self.set;
        let Some(case) = predict_cases().into_iter().find(is_of) else { return Ok(None) };
        let predicted = match predicted(&case, target) {
            Err(error) if is_out_of_memory(&error) => return Ok(None),
            predicted => predicted?,
        };
        let measured = self.families.iter().map(|of| (of.family.clone(), of.measured_seconds)).collect();
        Ok(Some(Prediction::of(&case, predicted.as_ref(), self.measured_step_seconds, measured)))
    }

    fn of(
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
        let by = |of: &FamilyDifference| (of.predicted_seconds - of.measured_seconds).abs();
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

/// Median and largest of the absolute errors of predictions; `None` without any.
#[must_use]
pub fn absolute_errors(predictions: &[Prediction]) -> Option<(f64, f64)> {
    let errors: Vec<_> = predictions.iter().filter_map(Prediction::error).map(f64::abs).collect();
    (!errors.is_empty()).then(|| (median(&errors), errors.iter().copied().fold(0.0, f64::max)))
}

/// Returns the configurations for the measured device.
#[must_use]
pub fn cases_of(device: DeviceChoice) -> Vec<PredictCase> {
    if measures_gpu(device) { predict_cases() } else { tiny_predict_cases() }
}

/// Predicts a step of a case on the device that `target` describes, and measures it on that of `options`;
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
    Ok(Some(Prediction::of(case, predicted.as_ref(), measured.median(), families)))
}

fn predicted(case: &PredictCase, target: &PlanTarget) -> Result<Option<StepTime>> {
    let config = case.config()?;
    let ranks = DeviceRanks::of(&config);
    let device: PlanDevice = target.device(None, ranks)?;
    let setup = prepare_shapes(config, Placement::Meta(device.description(ranks)))?;
    StepTime::of(&setup, &device).map_err(BenchError::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On an H200, which has memory for all.
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
