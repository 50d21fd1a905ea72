//! Tests of conversations and adapters with the recipes in `launch/recipes/chat`; samples show what was
//! learned.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use config::RunConfig;
use data::Tokenizer;
use inference::{End, EvaluateOptions, Evaluation, ExportOptions, Messages, SampleOptions};
use run::Startup;
use worker::DeviceChoice;

use super::{GRIDS, sample, sets};
use crate::common::runs::train_in;
use crate::common::{self, program, root};

/// Trains a recipe. Returns its first and last loss.
fn train(run_dir: &Path, recipe: &str, overrides: &[&str]) -> [f32; 2] {
    let losses = train_in(run_dir, recipe_of(recipe, overrides), DeviceChoice::Cpu).unwrap().summary.losses;
    [losses[0], *losses.last().unwrap()]
}

fn recipe_of(recipe: &str, overrides: &[&str]) -> RunConfig {
    let base = root().join("launch/recipes/chat");
    let text = std::fs::read_to_string(base.join(recipe)).unwrap();
    vision::register().unwrap();
    RunConfig::parse(&text, recipe, &base, &sets(overrides)).unwrap()
}

/// Returns the answers to messages, which end as the chat template determines.
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

/// Checks that a folder evaluates conversations like a run trained on them, also with a relative path and
/// with `--set`. The file's lines as plain text give another result.
fn scores_of_a_folder_are_those_of_its_run(directory: &Path, of_run: &Evaluation) {
    let evaluated = |sets: &[&str]| {
        let mut command = Command::new(program());
        command.args(["eval", "model", "--data", "conversations.jsonl", "--device", "cpu", "--json"]);
        command.args(sets).current_dir(directory);
        let output = command.output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        let evaluation: serde_json::Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{errors}"));
        (evaluation["tokens"].as_u64().unwrap(), evaluation["loss"].as_f64().unwrap(), errors)
    };
    let packed = ["--set", "data.pack_documents=true", "--set", "data.document_mask=true"];
    for sets in [&[][..], &["--set", "data.kind=chat"], &packed] {
        let (tokens, loss, _) = evaluated(sets);
        assert_eq!(tokens, of_run.tokens, "{sets:?}");
        assert!((loss - of_run.loss).abs() < 1e-5, "{sets:?}: {loss} {of_run}");
    }
    let (tokens, _, errors) = evaluated(&["--set", "data.kind=text"]);
    assert_eq!(tokens, std::fs::metadata(directory.join("conversations.jsonl")).unwrap().len() - 1);
    assert!(errors.contains("conversations.jsonl: it is JSON"), "{errors}");
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
    // The loss on all held-out conversations, or on those of a file.
    let loss = |data: Vec<String>, grid: &[&str]| {
        let model = at("chat");
        let device = DeviceChoice::Cpu;
        let options = EvaluateOptions { model, data, device, sets: sets(grid), ..Default::default() };
        inference::evaluate(Startup::alone(), &options).unwrap().unwrap()
    };
    let held_out = loss(Vec::new(), &[]);
    assert!(held_out.loss < 0.5 && held_out.tokens > 100, "{held_out}");
    assert_eq!(loss(Vec::new(), &["parallel.data=2"]), held_out);
    let text = std::fs::read_to_string(root().join("launch/recipes/chat/conversations.jsonl")).unwrap();
    let file = at("conversations.jsonl").display().to_string();
    std::fs::write(&file, text.lines().step_by(8).map(|line| format!("{line}\n")).collect::<String>())
        .unwrap();
    let all = loss(vec![file], &[]);
    assert!(all.tokens > 2 * held_out.tokens && all.loss < 0.5, "{all}");
    let messages = ["shout keel", "shout wind sail"];
    assert_eq!(answers(&at("chat"), &messages, &[]), ["KEEL", "WIND SAIL"]);
    conversations_go_on(&at("chat"), directory.path());
    export("chat", "model", false);
    assert_eq!(answers(&at("model"), &messages, &[]), ["KEEL", "WIND SAIL"]);
    scores_of_a_folder_are_those_of_its_run(directory.path(), &all);

    let from = format!("model.from={}", at("model").display());
    preferences_are_learnt(directory.path(), &from);
    let [first, last] = train(&at("twice"), "lora.toml", &[&from]);
    assert!(last < 0.1 * first, "{first} {last}");
    let messages = ["twice keel", "twice wind"];
    for grid in &GRIDS[..4] {
        assert_eq!(answers(&at("twice"), &messages, grid), ["KEEL KEEL", "WIND WIND"], "{grid:?}");
    }
    // Adapters are exported with their run's tokenizer and chat template.
    export("twice", "adapters", false);
    for name in ["tokenizer.json", "chat_template.jinja"] {
        let [own, original] =
            ["adapters", "model"].map(|folder| std::fs::read(at(folder).join(name)).unwrap());
        assert!(own == original, "{name}");
    }
    assert!(!at("adapters").join("generation_config.json").exists());
    assert_eq!(answers(&at("adapters"), &messages, &[]), ["KEEL KEEL", "WIND WIND"]);
    export("twice", "merged", true);
    assert_eq!(answers(&at("merged"), &messages, &[]), ["KEEL KEEL", "WIND WIND"]);
}

/// Checks that adapters learn by DPO to prefer the better of two answers, and that a model folder's answers
/// get shorter.
fn preferences_are_learnt(directory: &Path, from: &str) {
    let run_dir = directory.join("brief");
    let [first, last] = train(&run_dir, "preference.toml", &[from]);
    assert!(first == std::f32::consts::LN_2 && last < 0.5 * first, "{first} {last}");
    assert_eq!(answers(&run_dir, &["shout keel", "shout wind sail"], &[]), ["KEEL", "WIND"]);
    let options = EvaluateOptions { model: run_dir, device: DeviceChoice::Cpu, ..Default::default() };
    let refused = inference::evaluate(Startup::alone(), &options).unwrap_err();
    let text = refused.to_string();
    assert!(refused.exit_status() == 2 && text.contains("are those of a run's validations"), "{text}");
}

/// Checks that turns follow answers, and that prompts contain as much of the conversation as fits: on every
/// grid, and however the messages are specified.
fn conversations_go_on(model: &Path, directory: &Path) {
    let options = |grid: &[&str]| SampleOptions {
        model: model.to_owned(),
        chat: true,
        system: Some("S".to_owned()),
        tokens: 8,
        temperature: 0.7,
        seeds: vec![3],
        sets: sets(grid),
        ..SampleOptions::default()
    };
    let turns = vec!["shout sail".to_owned(), "shout bow".to_owned()];
    let prompts = vec!["shout keel".to_owned(), "shout wind".to_owned()];
    let with = |grid: &[&str]| {
        let sampled =
            sample(SampleOptions { prompts: prompts.clone(), turns: turns.clone(), ..options(grid) });
        assert!(sampled.memory.iter().all(|rank| Some(rank.planned) == rank.used));
        sampled.texts
    };
    let texts = with(&[]);
    let order: Vec<_> = texts.iter().map(|text| (text.seed, text.turn)).collect();
    assert_eq!(order, [(3, 0), (3, 1), (3, 2), (4, 0), (4, 1), (4, 2)]);
    for (conversation, first) in texts.chunks(3).zip(&prompts) {
        let prompt = |turn: usize| Tokenizer::Bytes.decode(&conversation[turn].prompt_tokens);
        let begin = format!("<system>S</><user>{first}</><assistant>");
        assert_eq!(prompt(0), begin);
        let answer = &conversation[0].text;
        assert_eq!(prompt(1), format!("{begin}{answer}</><user>shout sail</><assistant>"));
        // The first exchange no longer fits.
        let answer = &conversation[1].text;
        assert_eq!(
            prompt(2),
            format!("<system>S</><user>shout sail</><assistant>{answer}</><user>shout bow</><assistant>")
        );
    }
    for grid in &GRIDS[1..4] {
        assert_eq!(with(grid), texts, "{grid:?}");
    }
    // Messages read during the conversation, and conversations from a file.
    let mut lines = [prompts[0].clone()].into_iter().chain(turns.clone());
    let messages = Some(Messages::new(move || Ok(lines.next())));
    let read = sample(SampleOptions { messages, ..options(&["parallel.data=2", "parallel.pipeline=2"]) });
    assert_eq!(read.texts, texts[..3]);
    let file = directory.join("share_gpt.json");
    let text_of = |prompt: &str| {
        format!(
            "{{\"conversations\": [{{\"from\": \"human\", \"value\": {prompt:?}}}, \
             {{\"from\": \"gpt\", \"value\": \"left out\"}}]}}"
        )
    };
    std::fs::write(&file, format!("[{},\n{}]", text_of(&prompts[0]), text_of(&prompts[1]))).unwrap();
    let of_file = SampleOptions { conversations: vec![file], turns, ..options(&[]) };
    assert_eq!(sample(of_file).texts, texts);
    let none = SampleOptions { messages: Some(Messages::new(|| Ok(None))), ..options(&[]) };
    let refused = inference::sample(Startup::alone(), &none, std::sync::Arc::new(|_| Ok(()))).unwrap_err();
    assert!(refused.to_string().contains("--chat: it needs a message") && refused.exit_status() == 2);
}

#[test]
fn on_a_gpu_conversations_are_the_same_with_replayed_steps() {
    if !common::devices::gpu() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let model = directory.path().join("chat");
    let overrides = ["train.steps=30", "model.heads=2", "precision.compute=bf16", "parallel.data=1"];
    train_in(&model, recipe_of("chat.toml", &overrides), DeviceChoice::Cuda).unwrap();
    let sampled = |graphs: &str| {
        let options = SampleOptions {
            model: model.clone(),
            chat: true,
            prompts: ["shout keel", "shout", "shout wind sail"].map(str::to_owned).to_vec(),
            turns: vec!["shout sail".to_owned(), "shout bow".to_owned()],
            tokens: 12,
            repetition_penalty: 1.1,
            seeds: vec![3],
            sets: sets(&[&format!("train.graphs={graphs}")]),
            device: DeviceChoice::Cuda,
            ..SampleOptions::default()
        };
        inference::sample(Startup::alone(), &options, Arc::new(|_| Ok(()))).unwrap().unwrap()
    };
    let [plain, replayed] = ["off", "on"].map(sampled);
    assert_eq!((&replayed.texts, &replayed.memory), (&plain.texts, &plain.memory));
    assert!(plain.memory.iter().all(|rank| Some(rank.planned) == rank.used));
}
