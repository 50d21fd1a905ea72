//! Models that are scaled by their width (`model.base_width`): bits on every grid, and a coordinate check.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::common::runs::{LLAMA, on_cpu};
use ::tensor::Tensor;
use run::RunOptions;
use telemetry::hashes::Section;
use worker::{TensorHook, TensorSite};

const NARROW: &str = "model.base_width=16";

const SCALED: &[Row<'_>] = &[
    (
        GPT,
        &[NARROW, LANES, "model.heads=4", "optim.groups=[{match='wpe.*', learning_rate=0.5}]"],
        &[
            &["parallel.data=1"],
            &["parallel.tensor=2"],
            &["parallel.data=2", ZERO_3],
            &[PIPELINE, "parallel.data=2", SHARDED],
            &["optim.offload=true"],
        ],
    ),
    (
        LLAMA,
        &[NARROW, "model.base_head_width=8", "optim.kind=lion", "model.tied=true"],
        &[&["parallel.data=1"], &["parallel.data=4", SHARDED], &[PIPELINE, BLOCK]],
    ),
];

#[test]
fn scaled_models_have_equal_bits_on_every_grid() {
    check_on_devices(SCALED);
}

#[test]
fn the_base_width_itself_changes_no_bit() {
    for text in [GPT, LLAMA] {
        let plain = run(text, &[]);
        let same = run(text, &["model.base_width=32"]);
        assert_eq!((&same.losses, &same.weights), (&plain.losses, &plain.weights));
        assert_ne!(run(text, &[NARROW]).weights, plain.weights);
        // Heads of the base with another width change attention scores.
        let scaled = run(text, &[NARROW, "model.base_head_width=16"]);
        assert_ne!(scaled.weights, run(text, &[NARROW]).weights);
    }
}

/// Exported folders have both factors in their configuration, or there is no format.
#[test]
fn scaled_models_are_exported_with_their_factors() {
    let scaled = config(LLAMA, &["model.base_width=8"]);
    let folder = scaled.model.hugging_face().unwrap().config;
    assert_eq!((&folder["model_type"], &folder["logits_scaling"]), (&"granite".into(), &4.0.into()));
    // √(8 / 4 heads) / 8.
    let attention = folder["attention_multiplier"].as_f64().unwrap();
    assert!((attention - 2f64.sqrt() / 8.0).abs() < 1e-7, "{attention}");
    let format = |sets: &[&str]| config(LLAMA, sets).model.hugging_face().map(|model| model.config);
    assert_eq!(format(&["model.base_width=32"]), format(&[]));
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let sets = [NARROW, "train.steps=1", "checkpoint.every=1"];
    train_in(&run_dir, config(GPT, &sets), DeviceChoice::Cpu).unwrap();
    let output = directory.path().join("folder");
    let options = inference::ExportOptions { model: run_dir, output: output.clone(), ..Default::default() };
    let refused = inference::export(&options).unwrap_err().to_string();
    assert!(refused.ends_with("model.kind = \"gpt\", whose scores model.base_width scales"), "{refused}");
    assert!(!output.exists());
}

/// Widths of the coordinate check.
const WIDTHS: [usize; 3] = [32, 128, 512];
/// Steps after which activations are measured.
const STEPS: u64 = 4;

/// Most growth of an activation from the smallest width. Without scaling, some grow more than ten times.
const MOST_GROWTH: f64 = 4.0;

/// Returns the root mean square of each module's output in the last step of a run of this width, by module.
fn coordinates(text: &str, width: usize, sets: &[&str]) -> BTreeMap<String, f64> {
    let squares: Arc<Mutex<BTreeMap<String, Vec<f64>>>> = Arc::default();
    let seen = Arc::clone(&squares);
    let hook = TensorHook::new(move |site: &TensorSite<'_>, tensor: &Tensor| {
        if site.section == Section::Forward && site.step == STEPS {
            let values = tensor.to_vec::<f32>().unwrap_or_default();
            let square =
                values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / values.len().max(1) as f64;
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.entry(format!("{} {}", site.module, site.operator)).or_default().push(square);
        }
        Ok(())
    });
    let directory = tempfile::tempdir().unwrap();
    let steps = format!("train.steps={STEPS}");
    let width = format!("model.width={width}");
    let hashes = format!("telemetry.hashes={STEPS}");
    let common = [&*width, &*steps, &*hashes, "optim.warmup_steps=0", "optim.schedule=constant"];
    // A text that stays the same, because activations depend on it.
    let text_of_data = "data.paths=['LICENSE-APACHE']";
    let fixed = [text_of_data, "train.global_batch_size=4", "train.micro_batch_size=4", "parallel.lanes=1"];
    let options = RunOptions { tensor_hook: Some(hook), ..on_cpu(&directory.path().join("run")) };
    run::train(config(text, &[&common[..], &fixed, sets].concat()), options).unwrap();
    let squares = squares.lock().unwrap_or_else(PoisonError::into_inner);
    let root = |squares: &Vec<f64>| (squares.iter().sum::<f64>() / squares.len() as f64).sqrt();
    squares.iter().map(|(module, squares)| (module.clone(), root(squares))).collect()
}

/// With `model.base_width`, activations after some steps do not depend on the width. Without, they grow.
#[test]
fn activations_after_some_steps_do_not_depend_on_the_width() {
    let rate = ["optim.learning_rate=1e-2", "optim.clip_norm=0"];
    // The gated layers of a Llama multiply three small outputs, which are still growing after few steps.
    for (text, least) in [(GPT, 0.5), (LLAMA, 0.0)] {
        let measured = |width: usize, sets: &[&str]| coordinates(text, width, &[&rate[..], sets].concat());
        let scaled = WIDTHS.map(|width| measured(width, &["model.base_width=32"]));
        let plain = [WIDTHS[0], WIDTHS[2]].map(|width| measured(width, &[]));
        let mut grown = 1.0f64;
        for module in scaled[0].keys() {
            let values = scaled.each_ref().map(|run| run[module]);
            let is_head = module.contains("head") || module.contains("embed");
            let least = if is_head { 0.5 } else { least };
            let is_near = |value: &f64| (least..MOST_GROWTH).contains(&(value / values[0]));
            assert!(values.iter().all(is_near), "{module}: {values:?}");
            grown = grown.max(plain[1][module] / plain[0][module]);
        }
        assert_eq!(scaled[0], plain[0]);
        assert!(grown > 10.0, "{grown}");
    }
}
