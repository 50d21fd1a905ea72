//! Compares training in bf16 with transformers' bf16, each against float64.

use std::fs;

use serde_json::Value;
use worker::DeviceChoice;

use super::{devices, ten_steps};
use crate::common::golden;
use crate::common::runs::{config, train_in};
use crate::common::sizes;
use crate::families::MODELS;

/// Models also trained on the CPU, where half precision is slow; with `PLIMSOLL_LONG_TESTS`, all.
const ON_HOST: [&str; 3] = ["models/gpt2", "families/gemma3", "families/olmo2"];
/// Maximum ratio of our error to transformers'.
const RATIO: f64 = 1.5;
/// Mean relative errors that are always allowed: of losses, and of gradient norms, which sum many rounded
/// terms.
const FLOORS: [f64; 2] = [1e-4, 2e-3];

/// Losses or gradient norms of ten steps.
type Steps = Vec<f64>;

fn numbers(value: &Value) -> Steps {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

/// Returns the losses and gradient norms that transformers computed in `dtype`.
fn recorded(all: &Value, name: &str, dtype: &str) -> [Steps; 2] {
    ["losses", "gradient_norms"].map(|what| numbers(&all[name][dtype][what]))
}

/// Returns the losses and gradient norms of our steps in bf16.
fn trained(name: &str, device: DeviceChoice) -> [Steps; 2] {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let sets = ["precision.compute=bf16", "checkpoint.every=0"];
    train_in(&run_dir, config(&ten_steps(name), &sets), device).unwrap();
    let lines = fs::read_to_string(run_dir.join("metrics.jsonl")).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    ["loss", "gradient_norm"].map(|key| lines.iter().map(|line| line[key].as_f64().unwrap()).collect())
}

/// Returns the mean relative error.
fn error(actual: &Steps, expected: &Steps) -> f64 {
    assert_eq!(actual.len(), expected.len());
    let errors = actual.iter().zip(expected).map(|(actual, expected)| (actual / expected - 1.0).abs());
    errors.sum::<f64>() / expected.len() as f64
}

#[test]
fn bf16_is_as_near_to_float64_as_that_of_transformers() {
    let all: Value = serde_json::from_slice(&fs::read(golden("half.json")).unwrap()).unwrap();
    // Not all families were recorded in bf16.
    for name in MODELS.iter().filter(|name| all.get(**name).is_some()) {
        let tried = |device: &DeviceChoice| {
            *device == DeviceChoice::Cuda || sizes::are_wanted() || ON_HOST.contains(name)
        };
        for device in devices().into_iter().filter(tried) {
            let [exact, theirs] = ["float64", "bfloat16"].map(|dtype| recorded(&all, name, dtype));
            let ours = trained(name, device);
            for (index, what) in ["losses", "gradient norms"].iter().enumerate() {
                let [ours, theirs] = [&ours, &theirs].map(|steps| error(&steps[index], &exact[index]));
                eprintln!("{name} {device:?} {what}: {ours:.2e}, transformers {theirs:.2e}");
                let most = RATIO * theirs + FLOORS[index];
                assert!(
                    ours <= most,
                    "{name} {device:?}: errors of {what} {ours:.2e}, transformers {theirs:.2e}"
                );
            }
        }
    }
}
