//! Tests of steps that run out of memory and are repeated with smaller micro-batches.

use std::path::Path;

use crate::common;
use crate::common::runs::{GPT, MLP, config};
use crate::common::wrapped::with_forward;
use device::{Category, DType, Request};
use nn::Input;
use run::{Interrupt, RunError, RunOptions, TrainReport};
use serde_json::Value;
use tensor::Tensor;
use worker::DeviceChoice;

const HALVES: &str = "train.on_out_of_memory=halve_micro_batch";

/// Trains in `run_dir`. In step `step`, rank 1 needs an additional gibibyte unless its micro-batches have one
/// row.
fn train(run_dir: &Path, step: u32, sets: &[&str], options: RunOptions) -> Result<TrainReport, RunError> {
    let hook = with_forward(move |model, tape, input| {
        let device = tape.device();
        let rows = match &input {
            Input::Batch(batch) => batch.elements() / 32,
            Input::Hidden(_) => 0,
        };
        let here = device.rank() == 1 && device.step() == step && !device.is_meta();
        let output = model.forward(tape, input)?;
        if here && tape.mode().is_training() && rows > 1 {
            drop(Tensor::empty(device, [1 << 28], DType::F32, Request::new(Category::Activation, "hungry"))?);
        }
        Ok(output)
    });
    let limit = "memory.limit_bytes=200000000";
    let sets = [&["parallel.data=2", limit], sets].concat();
    let options = RunOptions {
        device: DeviceChoice::Cpu,
        run_dir: Some(run_dir.to_owned()),
        quiet: true,
        model_hook: Some(hook),
        ..options
    };
    run::train(config(GPT, &sets), options)
}

fn sessions(run_dir: &Path) -> Vec<Value> {
    serde_json::from_slice(&std::fs::read(run_dir.join("sessions.json")).unwrap()).unwrap()
}

/// Settings with half of the configuration's micro-batch sizes and unchanged lanes.
const HALVED: [&str; 2] = ["train.micro_batch_size=1", "train.validation_micro_batches=6"];

#[test]
fn a_run_that_would_fail_finishes() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    // Without the option, the run ends with status 1.
    let error = train(&path("stops"), 4, &[], RunOptions::default()).unwrap_err();
    assert_eq!(error.exit_status(), 1);
    assert!(error.to_string().contains("out of memory"), "{error}");
    // With the option, it completes all steps.
    let report = train(&path("halves"), 4, &[HALVES], RunOptions::default()).unwrap();
    assert_eq!((report.summary.steps, report.summary.losses.len()), (6, 6));
    let all = sessions(&path("halves"));
    let endings: Vec<_> = all.iter().map(|session| session["ending"].as_str().unwrap()).collect();
    assert_eq!(endings, ["out_of_memory", "complete"]);
    assert_eq!(all[1]["after_step"], 3);
    assert_eq!(all[1]["changed"]["train.micro_batch_size"]["from"], "2");
    assert_eq!(all[1]["changed"]["train.micro_batch_size"]["to"], "1");
    // The bits equal those of a run that is stopped after the same step and resumed with half the size.
    let until = RunOptions { interrupt: Interrupt::after(3), ..RunOptions::default() };
    assert!(train(&path("by hand"), 99, &[HALVES], until).unwrap().interrupted);
    let resumed = RunOptions { resume: true, ..RunOptions::default() };
    let sets = [&[HALVES], &HALVED[..]].concat();
    let by_hand = train(&path("by hand"), 99, &sets, resumed).unwrap();
    assert_eq!(report.summary.weights_sha256, by_hand.summary.weights_sha256);
    // Every step has one line.
    let metrics = std::fs::read_to_string(path("halves").join("metrics.jsonl")).unwrap();
    let steps: Vec<u64> = metrics
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["step"].as_u64().unwrap())
        .collect();
    assert_eq!(steps, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn the_first_step_is_repeated_from_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let report = train(&path("halves"), 1, &[HALVES], RunOptions::default()).unwrap();
    let all = sessions(&path("halves"));
    let sizes: Vec<_> = all.iter().map(|session| &session["micro_batch_size"]).collect();
    assert_eq!(sizes, [2, 1]);
    let changed = &all[1]["changed"]["train.micro_batch_size"];
    assert_eq!(
        (&all[1]["after_step"], &changed["from"], &changed["to"]),
        (&0.into(), &"2".into(), &"1".into())
    );
    let page = run::report_run(&path("halves"), &[]).unwrap().to_html();
    assert!(page.contains("train.micro_batch_size is 1 and was 2: bits may differ after step 0"));
    // The bits equal those of a run with the smaller micro-batches.
    let small = train(&path("small"), 1, &HALVED, RunOptions::default()).unwrap();
    assert_eq!(report.summary.losses, small.summary.losses);
    assert_eq!(report.summary.weights_sha256, small.summary.weights_sha256);
    // The option alone changes no bit.
    let plain = train(&path("plain"), 99, &[], RunOptions::default()).unwrap();
    let ready = train(&path("ready"), 99, &[HALVES], RunOptions::default()).unwrap();
    assert_eq!(plain.summary.weights_sha256, ready.summary.weights_sha256);
}

/// Checks ranks that sum gradients in shards and therefore communicate within passes: a step is repeated from
/// the last checkpoint, and the first step, which is rehearsed, from the start.
#[test]
fn runs_with_sharded_gradients_go_on_from_a_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    for (stage, step, after) in [("2", 4, 2), ("3", 4, 2), ("3", 1, 0)] {
        let stage = format!("parallel.zero_stage={stage}");
        let sets = [HALVES, "checkpoint.every=2", &stage];
        let name = format!("{stage} {step}");
        let report = train(&path(&name), step, &sets, RunOptions::default()).unwrap();
        assert_eq!((report.summary.steps, report.summary.losses.len()), (6, 6), "{name}");
        let all = sessions(&path(&name));
        let endings: Vec<_> = all.iter().map(|session| session["ending"].as_str().unwrap()).collect();
        assert_eq!(endings, ["out_of_memory", "complete"], "{name}");
        // A slow disk may not have the checkpoint of step 2 yet.
        let went_on = all[1]["after_step"].as_u64().unwrap();
        assert!(went_on == after || went_on == 0, "{name}: {went_on}");
        let after = went_on;
        // The bits equal those of a run without shards that is stopped there and resumed with half the size.
        let by_hand = path(&format!("{name} by hand"));
        if after > 0 {
            let until = RunOptions { interrupt: Interrupt::after(after), ..RunOptions::default() };
            assert!(train(&by_hand, 99, &[HALVES], until).unwrap().interrupted);
        }
        let resumed = RunOptions { resume: after > 0, ..RunOptions::default() };
        let expected = train(&by_hand, 99, &[&[HALVES], &HALVED[..]].concat(), resumed).unwrap();
        assert_eq!(report.summary.weights_sha256, expected.summary.weights_sha256, "{name}");
    }
}

#[test]
fn configurations_without_equal_samples_are_refused() {
    let refused = |text: &str, sets: &[&str]| {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        vision::register().unwrap();
        let error = config::RunConfig::parse(text, "test.toml", &common::root(), &sets).unwrap_err();
        error.to_string()
    };
    for (text, sets, word) in [
        (GPT, &[HALVES, "parallel.pipeline=2"][..], "parallel.pipeline = 1"),
        (MLP, &[HALVES], "synthetic"),
        (GPT, &[HALVES, "checkpoint.minutes=0"], "checkpoint.minutes"),
    ] {
        let message = refused(text, sets);
        assert!(message.contains("train.on_out_of_memory") && message.contains(word), "{message}");
    }
}
