//! Compares losses of preference pairs with TRL's (`tests/golden/preference.py`).

use std::fs;
use std::path::Path;

use inference::ExportOptions;
use safetensors::SafeTensors;
use serde_json::Value;
use worker::DeviceChoice;

use crate::common::golden;
use crate::common::runs::{config, train_in};

/// Configuration of a tiny model that learns all pairs in every step.
const PREFERENCE: &str = r#"
[model]
kind = "llama"
layers = 2
heads = 4
key_value_heads = 2
width = 16
context = 40
[data]
kind = "preference"
paths = ["tests/golden/preference.jsonl"]
validation_paths = ["tests/golden/preference.jsonl"]
[train]
steps = 4
micro_batch_size = 6
global_batch_size = 6
validation_micro_batches = 1
[optim]
kind = "sgd"
momentum = 0.0
schedule = "constant"
warmup_steps = 0
weight_decay = 0.0
clip_norm = 1e9
[parallel]
lanes = 1
"#;

/// Settings of each recorded loss.
const LOSSES: [(&str, &[&str]); 4] = [
    ("dpo", &["preference.beta=0.3"]),
    ("smoothed", &["preference.beta=0.3", "preference.label_smoothing=0.2"]),
    ("ipo", &["preference.loss=ipo", "preference.beta=0.3"]),
    ("orpo", &["preference.loss=orpo", "preference.lambda=0.5"]),
];

/// Names of the values of a step, and of a validation, in the order of the recording.
const STEP: [&str; 6] =
    ["loss", "gradient_norm", "reward_accuracy", "reward_margin", "chosen_reward", "rejected_reward"];
const VALIDATION: [&str; 5] = [
    "validation_loss",
    "validation_reward_accuracy",
    "validation_reward_margin",
    "validation_chosen_reward",
    "validation_rejected_reward",
];

/// Maximum relative difference, and absolute difference that is always allowed.
const TOLERANCE: [f64; 2] = [2e-4, 2e-6];

fn close(what: &str, actual: f64, expected: &Value) {
    let expected = expected.as_f64().unwrap();
    let most = TOLERANCE[0] * expected.abs() + TOLERANCE[1];
    assert!((actual - expected).abs() <= most, "{what}: {actual}, recorded {expected}");
}

/// Exports the weights of a run as a folder, and returns its bytes.
fn weights(run_dir: &Path) -> Vec<u8> {
    let output = run_dir.join("model");
    let options = ExportOptions { model: run_dir.to_owned(), output: output.clone(), ..Default::default() };
    inference::export(&options).unwrap();
    fs::read(output.join("model.safetensors")).unwrap()
}

fn values(weights: &SafeTensors, name: &str) -> Vec<f64> {
    let bytes = weights.tensor(name).unwrap().data().to_vec();
    bytes.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value).into()).collect()
}

#[test]
fn losses_gradients_and_rewards_of_pairs_are_those_of_trl() {
    let all: Value = serde_json::from_slice(&fs::read(golden("preference.json")).unwrap()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let train = |name: &str, sets: &[&str]| {
        let run_dir = directory.path().join(name);
        train_in(&run_dir, config(PREFERENCE, sets), DeviceChoice::Cpu).unwrap();
        (weights(&run_dir), fs::read_to_string(run_dir.join("metrics.jsonl")).unwrap())
    };
    let (first, _) = train("first", &["train.steps=1", "optim.learning_rate=1e-30"]);
    let first = SafeTensors::deserialize(&first).unwrap();
    for (name, sets) in LOSSES {
        let recorded = &all["losses"][name];
        let rate = format!("optim.learning_rate={}", recorded["rate"]);
        let (last, metrics) = train(name, &[sets, &[&rate]].concat());
        let lines: Vec<Value> = metrics.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for (line, expected) in lines.iter().zip(recorded["steps"].as_array().unwrap()) {
            for (index, key) in STEP.iter().enumerate() {
                close(
                    &format!("{name}, step {}, {key}", line["step"]),
                    line[key].as_f64().unwrap(),
                    &expected[index],
                );
            }
        }
        let line = lines.last().unwrap();
        for (index, key) in VALIDATION.iter().enumerate() {
            close(&format!("{name}, {key}"), line[key].as_f64().unwrap(), &recorded["validation"][index]);
        }
        let last = SafeTensors::deserialize(&last).unwrap();
        let changes = recorded["changes"].as_object().unwrap();
        assert_eq!((lines.len(), changes.len()), (4, last.names().len()));
        for (weight, expected) in changes {
            let before = values(&first, weight);
            let change: Vec<f64> = values(&last, weight).iter().zip(before).map(|(a, b)| a - b).collect();
            let norm = change.iter().map(|x| x * x).sum::<f64>().sqrt();
            close(&format!("{name}, change of {weight}"), norm, &expected[0]);
            let product: f64 = change.iter().enumerate().map(|(at, x)| x * (at as f64).cos()).sum();
            close(&format!("{name}, direction of {weight}"), product, &expected[1]);
        }
    }
}

/// Checks that the dropout of GPT-2's folders is ignored, as in TRL, unless the configuration sets it.
#[test]
fn preferences_are_trained_without_the_dropout_of_a_folder() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("folder");
    fs::create_dir(&at).unwrap();
    fs::copy(golden("models/gpt2/model.safetensors"), at.join("model.safetensors")).unwrap();
    let mut settings: Value =
        serde_json::from_slice(&fs::read(golden("models/gpt2/config.json")).unwrap()).unwrap();
    for key in ["attn_pdrop", "embd_pdrop", "resid_pdrop"] {
        settings[key] = 0.1.into();
    }
    fs::write(at.join("config.json"), settings.to_string()).unwrap();
    let sizes = "kind = \"llama\"\nlayers = 2\nheads = 4\nkey_value_heads = 2\nwidth = 16\n";
    let text = PREFERENCE.replace(sizes, &format!("from = {at:?}\n"));
    let text = text.replace("[data]\n", "[data]\ntokenizer = \"bytes\"\n");
    let first = |name: &str, sets: &[&str]| {
        let parsed = config(&text, &[&["train.steps=1", "optim.learning_rate=1e-30"], sets].concat());
        let sentences = (parsed.folder_notes(), parsed.dropout_warning());
        let losses =
            train_in(&directory.path().join(name), parsed, DeviceChoice::Cpu).unwrap().summary.losses;
        (f64::from(losses[0]), sentences)
    };
    let (loss, (notes, warning)) = first("without", &[]);
    assert!((loss - 2_f64.ln()).abs() < 1e-6, "policy and reference are one model: {loss}");
    assert!(
        notes.iter().any(|note| note.contains("without the dropout of") && note.contains("= 0.1 keeps it"))
    );
    assert_eq!(warning, None);
    let (loss, (notes, warning)) = first("with", &["model.dropout=0.1"]);
    assert!((loss - 2_f64.ln()).abs() > 1e-6 && notes.is_empty(), "{loss} {notes:?}");
    assert!(warning.unwrap().contains("model.dropout = 0.1: preferences are trained with dropout"));
}
