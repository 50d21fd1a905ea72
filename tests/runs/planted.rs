//! Tests of non-finite values injected into a model with FP8 matmuls: they reach loss, gradient norm and the
//! end of the run as in bf16.

use autograd::Tape;
use run::RunOptions;
use tensor::ops;
use worker::{DeviceChoice, ModelHook};

use super::alone;
use super::loss_scale::planted_gradient;
use crate::common::devices::gpu;
use crate::common::runs::{GPT, config};
use crate::common::wrapped::{with_forward, with_prediction};

/// Index of the first micro-batch of the third step; each step has four.
const PLANTED: u64 = 8;

/// Where a value is injected.
#[derive(Clone, Copy, Debug, PartialEq)]
enum PlantedAt {
    /// A weight of the second block.
    Weight,
    /// The gradient of the model's output.
    Gradient,
}

/// Returns a hook that injects `value` in one micro-batch.
fn planting(at: PlantedAt, value: f32) -> ModelHook {
    let is_due = |tape: &Tape| tape.mode().is_training() && tape.pass().micro_batch == PLANTED;
    match at {
        PlantedAt::Weight => with_forward(move |model, tape, input| {
            if is_due(tape) {
                let parameters = model.parameters().list();
                let fc = parameters.iter().find(|p| p.name.ends_with("1.mlp_fc.weight")).unwrap();
                ops::fill::constant(&fc.weight.tensor().unwrap().view(7, [1])?, value)?;
            }
            model.forward(tape, input)
        }),
        PlantedAt::Gradient => with_prediction(move |tape, prediction| match is_due(tape) {
            true => planted_gradient(tape, prediction, value),
            false => Ok(prediction),
        }),
    }
}

/// Trains with an injected value. Returns the reason why the run ended.
fn reason(device: DeviceChoice, sets: &[&str], at: PlantedAt, value: f32) -> String {
    let _alone = alone(device);
    let directory = tempfile::tempdir().unwrap();
    let options = RunOptions {
        device,
        run_dir: Some(directory.path().join("run")),
        quiet: true,
        model_hook: Some(planting(at, value)),
        ..RunOptions::default()
    };
    let sizes = ["model.width=64", "parallel.lanes=1", "train.max_nonfinite_steps=1"];
    run::train(config(GPT, &[&sizes, sets].concat()), options).unwrap_err().to_string()
}

#[test]
fn values_that_are_not_finite_end_a_run_in_fp8_as_in_bf16() {
    let fp8 = ["precision.compute=bf16", "precision.matmul=fp8"];
    let rowwise = ["precision.compute=bf16", "precision.matmul=fp8", "precision.fp8_recipe=rowwise"];
    let devices = [DeviceChoice::Cpu].into_iter().chain(gpu().then_some(DeviceChoice::Cuda));
    for device in devices {
        for (at, value) in [
            (PlantedAt::Weight, f32::INFINITY),
            (PlantedAt::Weight, f32::NAN),
            (PlantedAt::Gradient, f32::NEG_INFINITY),
            (PlantedAt::Gradient, f32::NAN),
        ] {
            let expected = reason(device, &["precision.compute=bf16"], at, value);
            assert!(expected.starts_with("step 3: the loss is "), "{at:?} {value}: {expected}");
            assert_eq!(expected.contains("the loss is NaN"), at == PlantedAt::Weight, "{value}: {expected}");
            for sets in [&fp8[..], &rowwise] {
                let actual = reason(device, sets, at, value);
                assert!(actual.starts_with("step 3: the loss is "), "{sets:?} {at:?} {value}: {actual}");
                let is_nan = actual.contains("the loss is NaN");
                assert_eq!(is_nan, at == PlantedAt::Weight, "{sets:?} {value}: {actual}");
                assert!(actual.contains("the gradient norm NaN"), "{sets:?} {at:?} {value}: {actual}");
            }
        }
    }
}
