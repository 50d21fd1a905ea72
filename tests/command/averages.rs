//! Tests of commands that use the average of a run's weights (`--ema`).

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::models::{is_refused, run, succeeds};
use super::{text, workplace};

/// Returns the loss that `plimsoll eval` prints.
fn loss(directory: &Path, arguments: &[&str]) -> f64 {
    let data = ["--data", "corpus.txt", "--context", "32", "--json", "--device", "cpu"];
    let printed = succeeds(directory, &[&["eval"], arguments, &data].concat());
    serde_json::from_str::<Value>(&printed).unwrap()["loss"].as_f64().unwrap()
}

#[test]
fn evaluation_sampling_and_export_use_the_average_of_a_run() {
    let workplace = workplace();
    let at = workplace.path();
    let sets = ["--set", "train.ema=0.9", "--set", "train.validate_ema=true", "--set", "checkpoint.every=6"];
    let output =
        run(at, &[&["train", "run.toml", "--run-dir", "averaged", "--device", "cpu"], &sets[..]].concat());
    let logged = text(&output.stderr);
    assert!(logged.contains("validation loss of the averaged weights"), "{logged}");
    let printed = text(&output.stdout);
    assert!(printed.contains("Validation loss of the averaged weights"), "{printed}");
    let metrics = fs::read_to_string(at.join("averaged/metrics.jsonl")).unwrap();
    let validated: Vec<_> = metrics.lines().filter(|line| line.contains("validation_loss")).collect();
    assert_eq!(validated.len(), 2);
    assert!(validated.iter().all(|line| line.contains(r#""validation_weights":"average""#)), "{metrics}");
    let summary: Value =
        serde_json::from_slice(&fs::read(at.join("averaged/summary.json")).unwrap()).unwrap();
    assert_eq!(summary["validation_weights"], "average");
    // The average is another model than the weights, also after an export.
    let [average, weights] = [&["averaged", "--ema"][..], &["averaged"]].map(|model| loss(at, model));
    assert_ne!(average, weights);
    for (flags, folder, expected) in [(&["--ema"][..], "average", average), (&[], "weights", weights)] {
        succeeds(at, &[&["export", "averaged", "-o", folder], flags].concat());
        assert_eq!(loss(at, &[folder]), expected, "{folder}");
    }
    let sampled = |flags: &[&str]| {
        let greedy = ["--greedy", "--tokens", "8", "--prompt", "The ", "--device", "cpu", "--json"];
        let printed = succeeds(at, &[&["sample"], flags, &greedy].concat());
        serde_json::from_str::<Value>(&printed).unwrap()["texts"].clone()
    };
    assert_eq!(sampled(&["averaged", "--ema"]), sampled(&["average"]));
    // On other grids the average is the same.
    let grid = ["averaged", "--ema", "--set", "parallel.data=2", "--set", "parallel.pipeline=2"];
    assert_eq!(loss(at, &grid), average);
}

#[test]
fn the_average_of_adapters_is_merged() {
    let workplace = workplace();
    let at = workplace.path();
    let sets = ["train.ema=0.95", "lora.rank=4", "optim.learning_rate=0.05", "checkpoint.every=6"];
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", *set]).collect();
    succeeds(at, &[&["train", "run.toml", "--run-dir", "tuned", "--device", "cpu"], &sets[..]].concat());
    let average = loss(at, &["tuned", "--ema"]);
    assert!((average - loss(at, &["tuned"])).abs() > 0.01);
    succeeds(at, &["export", "tuned", "--ema", "--merge", "-o", "merged"]);
    let merged = loss(at, &["merged"]);
    assert!((merged - average).abs() < 1e-5 * average, "{merged} {average}");
}

#[test]
fn an_average_that_does_not_exist_is_refused() {
    let workplace = workplace();
    let at = workplace.path();
    let sets = ["--set", "train.steps=1", "--set", "checkpoint.every=1", "--device", "cpu"];
    succeeds(at, &[&["train", "run.toml", "--run-dir", "plain"], &sets[..]].concat());
    succeeds(at, &["export", "plain", "-o", "folder"]);
    let without = "step-000001 has no average of the weights, which train.ema keeps";
    let folder = "--ema: folder is a folder of a model, and only checkpoints have an average of the weights";
    for (model, expected) in [("plain", without), ("folder", folder)] {
        is_refused(at, &["eval", model, "--ema", "--data", "corpus.txt"], expected);
        is_refused(at, &["sample", model, "--ema"], expected);
        is_refused(at, &["export", model, "--ema", "-o", "none"], expected);
    }
    assert!(!at.join("none").exists());
    // A resumed run says where its average begins.
    let more = ["--set", "train.steps=2", "--set", "train.ema=0.9", "--device", "cpu"];
    let output = run(at, &[&["train", "run.toml", "--resume", "--run-dir", "plain"], &more[..]].concat());
    let logged = text(&output.stderr);
    let expected = "the average of the weights begins as a copy of them: the checkpoint has none";
    assert!(output.status.success() && logged.contains(expected), "{logged}");
    loss(at, &["plain", "--ema"]);
}
