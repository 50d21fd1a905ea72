//! Tests of f16's dynamic loss scale: injected infinities, skipped steps, and their records.

use std::path::Path;

use autograd::{Rule, Saved, Tape, ValueGradients, Var};
use nn::NnError;
use run::{Interrupt, RunOptions, TrainReport};
use serde_json::Value;
use tensor::ops;
use worker::ModelHook;

use super::{BLOCK, GPIPE, PAIRS, Row, SHARDED, ZERO_2, ZERO_3, ZERO_BUBBLE, check};
use crate::common::runs::{GPT, LLAMA, MLP, config, on_cpu};
use crate::common::wrapped::with_prediction;

const F16: [&str; 3] = ["precision.compute=f16", "model.width=64", "model.layers=4"];
/// Index of a micro-batch in the third step; each step has four.
const PLANTED: u64 = 9;

/// Returns a hook that injects `value` into the gradient of the last stage's output, in one micro-batch.
fn planting(value: f32) -> ModelHook {
    with_prediction(move |tape, prediction| {
        match tape.pass().micro_batch == PLANTED && tape.mode().is_training() {
            true => planted_gradient(tape, prediction, value),
            false => Ok(prediction),
        }
    })
}

/// Returns `prediction`, with `value` injected into its gradient.
pub(super) fn planted_gradient(tape: &Tape, prediction: Var, value: f32) -> Result<Var, NnError> {
    tape.begin("plant")?;
    let source = prediction.source();
    let output = prediction.into_tensor();
    Ok(tape.record_one(&[source], output, || Plant(value))?)
}

#[derive(Debug)]
struct Plant(f32);

impl Rule for Plant {
    fn operator(&self) -> &'static str {
        "plant"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        Vec::new()
    }

    fn backward_input(
        &mut self,
        outputs: ValueGradients,
        _wanted: &[bool],
    ) -> autograd::Result<ValueGradients> {
        if let Some(gradient) = outputs.first().and_then(Option::as_ref) {
            ops::fill::constant(&gradient.view(7, [1])?, self.0)?;
        }
        Ok(outputs)
    }
}

/// Trains a model with an injected `value`, for all steps or the first `steps`.
fn plant(directory: &Path, value: f32, sets: &[&str], steps: Option<u64>) -> TrainReport {
    let options = RunOptions {
        resume: true,
        interrupt: steps.map_or_else(Interrupt::default, Interrupt::after),
        model_hook: Some(planting(value)),
        ..on_cpu(directory)
    };
    run::train(config(GPT, &[&F16[..], &["checkpoint.every=1000"], sets].concat()), options).unwrap()
}

/// Returns the values of a key in the lines of `metrics.jsonl`.
fn metrics(directory: &Path, key: &str) -> Vec<f64> {
    let text = std::fs::read_to_string(directory.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()[key].as_f64().unwrap()).collect()
}

/// Returns the arrays of the newest checkpoint except the losses.
fn state(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let checkpoint = checkpoint::newest(directory).unwrap().unwrap();
    let array = |name: &str| (name.to_owned(), checkpoint.bytes(name).unwrap());
    let mut arrays: Vec<_> = checkpoint.names().map(array).collect();
    arrays.retain(|(name, _)| !name.contains("loss"));
    arrays
}

#[test]
fn a_planted_infinity_skips_one_update_on_every_grid() {
    let directory = tempfile::tempdir().unwrap();
    let grids: [&[&str]; 8] = [
        &["parallel.data=1"],
        &["parallel.data=2", "parallel.overlap=off"],
        &["parallel.data=4", SHARDED],
        &["parallel.pipeline=2"],
        &["parallel.pipeline=2", "parallel.data=2", ZERO_BUBBLE, SHARDED],
        &["parallel.data=2", BLOCK],
        &["parallel.data=3", ZERO_2],
        &["parallel.data=4", ZERO_3, PAIRS],
    ];
    let mut first: Option<(Vec<f32>, String)> = None;
    for (number, grid) in grids.into_iter().enumerate() {
        let path = directory.path().join(number.to_string());
        let value = if number % 2 == 0 { f32::INFINITY } else { f32::NAN };
        let report = plant(&path, value, grid, None);
        assert!(report.unplanned.as_ref().is_some_and(Vec::is_empty), "{grid:?}: {report}");
        assert_eq!(metrics(&path, "skipped_steps"), [0.0, 0.0, 1.0, 1.0, 1.0, 1.0], "{grid:?}");
        let scales = [65536.0, 65536.0, 65536.0, 32768.0, 32768.0, 32768.0];
        assert_eq!(metrics(&path, "loss_scale"), scales, "{grid:?}");
        assert!(report.to_string().contains("Skipped the update of 1 step"), "{report}");
        let bits = (report.summary.losses.clone(), report.summary.weights_sha256.clone());
        assert!(bits.0.iter().all(|loss| loss.is_finite()));
        assert_eq!(first.get_or_insert(bits.clone()), &bits, "{grid:?}");
    }
}

#[test]
fn a_skipped_update_leaves_weights_and_state_and_resumes() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    plant(&path("before"), f32::INFINITY, &[], Some(2));
    plant(&path("after"), f32::INFINITY, &[], Some(3));
    assert_eq!(state(&path("before")), state(&path("after")));
    let scale_of = |name: &str| checkpoint::newest(&path(name)).unwrap().unwrap().loss_scale().unwrap();
    assert_eq!(f32::from_bits(scale_of("before").scale_bits), 65536.0);
    assert_eq!(f32::from_bits(scale_of("after").scale_bits), 32768.0);
    assert_eq!((scale_of("before").good_steps, scale_of("after").good_steps), (2, 0));
    // Resumed after the skipped step on another grid, it continues as if never stopped.
    let whole = plant(&path("whole"), f32::INFINITY, &[], None);
    let resumed = plant(&path("after"), f32::INFINITY, &["parallel.data=2"], None);
    assert_eq!(resumed.summary.losses, whole.summary.losses);
    assert_eq!(resumed.summary.weights_sha256, whole.summary.weights_sha256);
    assert_eq!(metrics(&path("after"), "skipped_steps"), metrics(&path("whole"), "skipped_steps"));
    assert_eq!(scale_of("after"), scale_of("whole"));
}

#[test]
fn the_scale_adapts_until_gradients_fit_and_a_run_that_cannot_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run");
    let large = ["precision.scaler.init_scale=3e9", "precision.scaler.backoff_factor=0.01"];
    let report = plant(&path, 0.0, &[&large[..], &["precision.scaler.growth_interval=2"]].concat(), None);
    let scales = metrics(&path, "loss_scale");
    assert!(scales[0] == 3e9 && scales[1] < 3.1e7, "{scales:?}");
    // The scale grows after two good steps.
    assert!(scales.windows(2).any(|pair| pair[1] == 2.0 * pair[0]), "{scales:?}");
    assert!(report.summary.losses[5] < report.summary.losses[0]);
    // A scale below 1 does not help.
    let options =
        RunOptions { model_hook: Some(planting(f32::NAN)), ..on_cpu(&directory.path().join("lost")) };
    let sets = [&F16[..], &["precision.scaler.init_scale=0.5"]].concat();
    let error = run::train(config(GPT, &sets), options).unwrap_err();
    assert!(error.to_string().contains("step 3"), "{error}");
}

/// f16 on grids, with skipped steps and a growing scale.
const GRIDS: &[Row] = &[
    (
        GPT,
        &[
            "precision.compute=f16",
            "model.width=64",
            "model.layers=4",
            "precision.scaler.init_scale=3e7",
            "precision.scaler.growth_interval=2",
        ],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", BLOCK],
            &["parallel.data=4", SHARDED],
            &["parallel.data=3", ZERO_2],
            &["parallel.pipeline=2", GPIPE],
            &["parallel.pipeline=2", "parallel.data=2", ZERO_BUBBLE, SHARDED],
            &["parallel.pipeline=2", "parallel.data=2", ZERO_BUBBLE, ZERO_3],
        ],
    ),
    (
        MLP,
        &["precision.compute=f16", "precision.gradients=f16", "precision.scaler.init_scale=1024"],
        &[&["parallel.data=1"], &["parallel.data=4", SHARDED], &["parallel.pipeline=2"]],
    ),
    (
        LLAMA,
        &["precision.compute=f16", "model.width=128", "model.loss_pieces=2"],
        &[&["parallel.data=1"], &["parallel.data=2"], &["parallel.pipeline=2"]],
    ),
];

#[test]
fn f16_has_equal_bits_on_every_grid() {
    check(GRIDS);
}
