//! Conversations and adapters of `launch/recipes/chat`, whose samples show what was learnt.

use std::path::Path;

use inference::{End, EvaluateOptions, ExportOptions, SampleOptions};
use run::Startup;
use worker::DeviceChoice;

use super::{GRIDS, sample, sets};
use crate::common::root;
use crate::common::runs::train_in;

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
    let all = loss(vec![file], &[]);
    assert!(all.tokens > 10 * held_out.tokens && all.loss < 0.5, "{all}");
    let messages = ["shout keel", "shout wind sail"];
    assert_eq!(answers(&at("chat"), &messages, &[]), ["KEEL", "WIND SAIL"]);
    export("chat", "model", false);
    assert_eq!(answers(&at("model"), &messages, &[]), ["KEEL", "WIND SAIL"]);

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
