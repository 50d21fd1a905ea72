//! Conversations and adapters of `launch/recipes/chat`, whose samples show what was learnt.

use std::path::Path;
use std::process::Command;

use inference::{End, EvaluateOptions, Evaluation, ExportOptions, SampleOptions};
use run::Startup;
use worker::DeviceChoice;

use super::{GRIDS, sample, sets};
use crate::common::runs::train_in;
use crate::common::{program, root};

/// Trains a recipe, and returns its first and last loss.
fn train(run_dir: &Path, recipe: &str, overrides: &[&str]) -> [f32; 2] {
    let base = root().join("launch/recipes/chat");
    let text = std::fs::read_to_string(base.join(recipe)).unwrap();
    let config = config::RunConfig::parse(&text, recipe, &base, &sets(overrides)).unwrap();
    let losses = train_in(run_dir, config, DeviceChoice::Cpu).unwrap().summary.losses;
    [losses[0], *losses.last().unwrap()]
}

/// The answers to some messages, which the chat template ends.
fn answers(model: &Path, messages: &[&str], grid: &[&str]) -> Vec<String> {
    let options = SampleOptions {
        model: model.to_owned(),
        prompts: messages.iter().map(ToString::to_string).collect(),
        chat: true,
        temperature: 0.0,
        tokens: 30,
        sets: sets(grid),
        ..SampleOptions::default()
    };
    let sampled = sample(options);
    assert!(sampled.memory.iter().all(|rank| Some(rank.planned) == rank.used));
    assert!(sampled.texts.iter().all(|text| text.end == End::Stop), "{sampled:?}");
    sampled.texts.into_iter().map(|text| text.text).collect()
}

/// A folder takes conversations as a run on them does, also by a relative path and by `--set`; all lines of
/// the file as text are another thing.
fn scores_of_a_folder_are_those_of_its_run(directory: &Path, file: &str, of_run: &Evaluation) {
    let copy = directory.join("conversations.jsonl");
    std::fs::copy(file, &copy).unwrap();
    let evaluated = |sets: &[&str]| {
        let mut command = Command::new(program());
        command.args(["eval", "model", "--data", "conversations.jsonl", "--device", "cpu", "--json"]);
        command.args(sets).current_dir(directory);
        let output = command.output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        let found: serde_json::Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{errors}"));
        (found["tokens"].as_u64().unwrap(), found["loss"].as_f64().unwrap(), errors)
    };
    let packed = ["--set", "data.pack_documents=true", "--set", "data.document_mask=true"];
    for sets in [&[][..], &["--set", "data.kind=chat"], &packed] {
        let (tokens, loss, _) = evaluated(sets);
        assert_eq!(tokens, of_run.tokens, "{sets:?}");
        assert!((loss - of_run.loss).abs() < 1e-5, "{sets:?}: {loss} {of_run}");
    }
    let (tokens, _, errors) = evaluated(&["--set", "data.kind=text"]);
    assert_eq!(tokens, std::fs::metadata(&copy).unwrap().len() - 1);
    assert!(errors.contains("conversations.jsonl: its lines are JSON"), "{errors}");
}

#[test]
fn conversations_and_adapters_are_learnt() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let export = |run: &str, output: &str, merge: bool| {
        let options = ExportOptions { model: at(run), output: at(output), merge, ..Default::default() };
        inference::export(&options).unwrap();
    };
    let [first, last] = train(&at("chat"), "chat.toml", &["train.steps=150"]);
    assert!(last < 0.1 * first, "{first} {last}");
    // All conversations that were held out, or those of a file.
    let loss = |data: Vec<String>, grid: &[&str]| {
        let (model, device) = (at("chat"), DeviceChoice::Cpu);
        let options = EvaluateOptions { model, data, device, sets: sets(grid), ..Default::default() };
        inference::evaluate(Startup::alone(), &options).unwrap().unwrap()
    };
    let held_out = loss(Vec::new(), &[]);
    assert!(held_out.loss < 0.5 && held_out.tokens > 100, "{held_out}");
    assert_eq!(loss(Vec::new(), &["parallel.data=2"]), held_out);
    let file = root().join("launch/recipes/chat/conversations.jsonl").display().to_string();
    let all = loss(vec![file.clone()], &[]);
    assert!(all.tokens > 10 * held_out.tokens && all.loss < 0.5, "{all}");
    let messages = ["shout keel", "shout wind sail"];
    assert_eq!(answers(&at("chat"), &messages, &[]), ["KEEL", "WIND SAIL"]);
    export("chat", "model", false);
    assert_eq!(answers(&at("model"), &messages, &[]), ["KEEL", "WIND SAIL"]);
    scores_of_a_folder_are_those_of_its_run(directory.path(), &file, &all);

    let from = format!("model.from={}", at("model").display());
    let [first, last] = train(&at("twice"), "lora.toml", &[&from]);
    assert!(last < 0.1 * first, "{first} {last}");
    let messages = ["twice keel", "twice wind"];
    for grid in &GRIDS[..4] {
        assert_eq!(answers(&at("twice"), &messages, grid), ["KEEL KEEL", "WIND WIND"], "{grid:?}");
    }
    export("twice", "merged", true);
    assert_eq!(answers(&at("merged"), &messages, &[]), ["KEEL KEEL", "WIND WIND"]);
}
