//! Tests of fine-tuning with a configuration of four keys: plan, run, and the run's final message about its
//! model.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::common;
use crate::common::jobs::text;

/// The sentence about the sequence length.
const SIZED: &str = "model.context = 64: the longest of 57 conversations has 58 tokens";

/// Creates a directory with 57 conversations and a configuration for adapters of a model folder.
fn workplace() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let root = common::root();
    let recipe = root.join("launch/recipes/chat");
    let all = fs::read_to_string(recipe.join("conversations.jsonl")).unwrap();
    let few: Vec<_> = all.lines().take(57).collect();
    fs::write(directory.path().join("conversations.jsonl"), few.join("\n")).unwrap();
    fs::copy(recipe.join("template.jinja"), directory.path().join("template.jinja")).unwrap();
    let folder = root.join("tests/golden/models/llama");
    let lines = format!(
        "[model]\nfrom = {folder:?}\n[lora]\nrank = 4\n[data]\nkind = \"chat\"\n\
         paths = [\"conversations.jsonl\"]\nchat_template = \"template.jinja\"\n"
    );
    fs::write(directory.path().join("run.toml"), lines).unwrap();
    directory
}

fn plimsoll(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(common::program());
    command.current_dir(directory).env("CUDA_VISIBLE_DEVICES", "").args(arguments);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    output
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_plan_sizes_sequences_and_counts_tokens_by_the_data() {
    let directory = workplace();
    let plan = |more: &[&str]| {
        let arguments = ["plan", "run.toml", "--device", "h100-80gb", "--json"];
        json(&plimsoll(directory.path(), &[&arguments[..], more].concat()))
    };
    let of_data = plan(&[]);
    let notes: Vec<_> = of_data["defaults"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(notes[0], SIZED);
    assert!(notes[1].starts_with("defaults of fine-tuning: optim.learning_rate = 0.0002, "), "{notes:?}");
    assert!(notes[2].starts_with("parallel.lanes = 1: "), "{notes:?}");
    // 54 training conversations, one per sequence, 8 in a step, 3 epochs.
    assert_eq!((&of_data["steps"], &of_data["epochs"]["samples"]), (&21.into(), &54.into()));
    let sets = ["model.context=64", "precision.compute=bf16", "parallel.lanes=1"];
    let sets: Vec<_> = sets.iter().flat_map(|set| ["--set", set]).collect();
    assert_eq!(of_data["ranks"], plan(&sets)["ranks"], "the same bytes where the keys are written");
    let speed = |plan: &Value| plan["predicted"]["tokens_per_second"].as_f64().unwrap();
    let step = |plan: &Value| plan["predicted_step_seconds"].as_f64().unwrap();
    let share = speed(&of_data) * step(&of_data) / (8.0 * 64.0);
    assert!((0.5..0.9).contains(&share), "{share} of the positions hold tokens");
    let f32 = plan(&["--set", "precision.compute=f32"]);
    assert_ne!(f32["ranks"], of_data["ranks"]);
}

#[test]
fn packed_conversations_have_the_loss_of_unpacked_ones() {
    let directory = workplace();
    let validation = |name: &str, more: &[&str]| {
        let sets = [&["train.steps=1", "optim.learning_rate=1e-20"][..], more].concat();
        let sets: Vec<_> = sets.iter().flat_map(|set| ["--set", set]).collect();
        let arguments = ["train", "run.toml", "--device", "cpu", "--run-dir", name];
        let output = plimsoll(directory.path(), &[&arguments[..], &sets].concat());
        let summary = fs::read(directory.path().join(name).join("summary.json")).unwrap();
        let summary: Value = serde_json::from_slice(&summary).unwrap();
        (summary["validation_loss"].as_f64().unwrap(), text(&output.stderr))
    };
    let (packed, log) = validation("packed", &["model.context=256"]);
    assert!(log.contains(" sequences of 256 tokens, of which "), "{log}");
    let (alone, _) = validation("alone", &["data.pack_documents=false"]);
    assert!((packed - alone).abs() < 1e-5, "{packed} {alone}");
}

#[test]
fn a_run_says_where_its_model_is_and_how_to_use_it() {
    let directory = workplace();
    let trained = plimsoll(directory.path(), &["train", "run.toml", "--device", "cpu", "--run-dir", "run"]);
    let printed = text(&trained.stdout);
    let log = text(&trained.stderr);
    assert!(log.contains(SIZED) && log.contains("defaults of fine-tuning: "), "{log}");
    for part in [
        "Every rank used what was planned, to the byte.",
        " in the first step; weights ",
        "The adapters are in run/checkpoints/step-000021\n",
        "plimsoll sample run --chat\n",
        "plimsoll export run --merge -o DIR\n",
    ] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    assert!(!printed.contains("memory by rank"), "{printed}");
    let resumed = ["train", "--resume", "--run-dir", "run", "--device", "cpu", "--report", "memory"];
    assert!(text(&plimsoll(directory.path(), &resumed).stdout).contains("memory by rank"));
    // Texts and folders use the model's full context, not the run's sequence length.
    let sample = ["sample", "run", "--prompt", "keel", "--tokens", "100", "--greedy", "--device", "cpu"];
    plimsoll(directory.path(), &sample);
    plimsoll(directory.path(), &["export", "run", "--merge", "-o", "merged"]);
    let config = fs::read(directory.path().join("merged/config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    assert_eq!(config["max_position_embeddings"], 512);
}

#[test]
fn steps_of_like_lengths_have_less_padding() {
    let directory = workplace();
    let log = |name: &str, set: &str| {
        let sets = ["--set", set, "--set", "train.steps=2"];
        let arguments = ["train", "run.toml", "--device", "cpu", "--run-dir", name];
        text(&plimsoll(directory.path(), &[&arguments[..], &sets].concat()).stderr)
    };
    let padding = |log: &str| {
        let (_, after) = log.split_once("tokens, of which ").unwrap();
        after.split(' ').next().unwrap().parse::<u32>().unwrap()
    };
    let alone = log("alone", "data.pack_documents=false");
    let grouped = log("grouped", "data.group_by_length=true");
    assert!(grouped.contains(", 64 tokens, of which "), "{grouped}");
    assert!(2 * padding(&grouped) < padding(&alone), "{grouped}{alone}");
    let plan = |set: &str| {
        let arguments = ["plan", "run.toml", "--device", "h200", "--json", "--set", set];
        json(&plimsoll(directory.path(), &arguments))
    };
    let alone = plan("data.pack_documents=false");
    let grouped = plan("data.group_by_length=true");
    assert_eq!(alone["epochs"], grouped["epochs"]);
    let seconds = |plan: &Value| plan["predicted_step_seconds"].as_f64().unwrap();
    assert!(seconds(&grouped) < seconds(&alone));
}
