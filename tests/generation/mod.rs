//! Tests of text generation and multiple choice with whole models: equal on every grid, in the planned
//! memory, and equal to transformers.

mod chat;
mod choices;
mod transformers;

use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::common;
use crate::common::golden;
use crate::common::runs::{GPT, LATENTS, LLAMA, config, train_in};
use crate::families::{
    CARRIED, MODELS, RECURRENT, WHOLE, WITH_QUESTIONS, WITHOUT_TEXTS, folder, is_on_all_grids,
};
use inference::{EvaluateOptions, Evaluation, SampleOptions, Sampled, Show, TextEvent};
use run::Startup;
use serde_json::Value;
use worker::DeviceChoice;

/// The token that ends texts of the recorded models.
const END: u32 = 2;

const GRIDS: [&[&str]; 5] = [
    &[],
    &["parallel.data=2"],
    &["parallel.pipeline=2"],
    &["parallel.data=2", "parallel.pipeline=2"],
    &["parallel.data=4"],
];
/// Grids with tensor parallelism.
const TENSOR: [&[&str]; 3] = [
    &["parallel.tensor_lanes=2"],
    &["parallel.tensor=2"],
    &["parallel.tensor=2", "parallel.pipeline=2", "parallel.data=2"],
];
/// Grids with context parallelism.
const CONTEXT: [&[&str]; 3] = [
    &["parallel.context_lanes=4"],
    &["parallel.context=2", "parallel.context_lanes=4"],
    &["parallel.context=2", "parallel.context_lanes=4", "parallel.pipeline=2", "parallel.data=2"],
];
/// Evaluation grids with sharded weights.
const SHARDED: [&[&str]; 3] = [
    &["parallel.data=2", "parallel.zero_stage=3"],
    &["parallel.data=3", "parallel.pipeline=2", "parallel.zero_stage=3"],
    &["parallel.data=4", "parallel.zero_stage=3", "parallel.shard=2", "parallel.prefetch=0"],
];

/// Configuration of a GPT whose head width has bf16 kernels.
const GPT_WIDE: &str = r#"
[model]
layers = 2
heads = 2
width = 64
context = 32
[data]
paths = ["ARCHITECTURE.md"]
[train]
steps = 6
"#;
const LLAMA_WIDE: &str = r#"
[model]
kind = "llama"
layers = 2
heads = 4
key_value_heads = 1
width = 256
value_width = 40
context = 32
[data]
paths = ["ARCHITECTURE.md"]
[train]
steps = 6
"#;

fn recorded(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(folder(name).join("generation.json")).unwrap()).unwrap()
}

fn lists(value: &Value) -> Vec<Vec<u32>> {
    serde_json::from_value(value.clone()).unwrap()
}

fn sets(grid: &[&str]) -> Vec<String> {
    grid.iter().map(|set| (*set).to_owned()).collect()
}

fn sample(options: SampleOptions) -> Sampled {
    let options = SampleOptions { device: DeviceChoice::Cpu, ..options };
    inference::sample(Startup::alone(), &options, Arc::new(|_| Ok(()))).unwrap().unwrap()
}

/// Samples, and also returns the texts as they were shown.
fn shown(options: SampleOptions) -> (Sampled, Vec<String>) {
    let pieces = Arc::new(Mutex::new(Vec::new()));
    let received = Arc::clone(&pieces);
    let show: Show = Arc::new(move |piece| {
        let mut received = received.lock().unwrap();
        match piece {
            TextEvent::Begin { prompt, .. } => received.push(prompt.to_owned()),
            TextEvent::More(text) => *received.last_mut().unwrap() += text,
            TextEvent::End(_) => {}
        }
        Ok(())
    });
    let options = SampleOptions { device: DeviceChoice::Cpu, ..options };
    let sampled = inference::sample(Startup::alone(), &options, show).unwrap().unwrap();
    let texts = pieces.lock().unwrap().clone();
    (sampled, texts)
}

fn greedy(model: &Path, prompts: Vec<Vec<u32>>) -> SampleOptions {
    SampleOptions {
        model: model.to_owned(),
        prompt_tokens: prompts,
        tokens: 64,
        temperature: 0.0,
        ..SampleOptions::default()
    }
}

fn choices(model: &Path, grid: &[&str]) -> Evaluation {
    let options = EvaluateOptions {
        model: model.to_owned(),
        choices: Some(golden("models").join("choices.bin")),
        device: DeviceChoice::Cpu,
        sets: sets(grid),
        ..EvaluateOptions::default()
    };
    inference::evaluate(Startup::alone(), &options).unwrap().unwrap()
}

/// Compares recorded texts. Of prompts with padding tokens, which transformers hid for want of a mask,
/// nanochat's alone is here, without that token: with windows or recurrent layers, hidden tokens count.
#[test]
fn greedy_tokens_are_those_of_transformers_on_every_grid() {
    for name in MODELS.iter().filter(|name| !WITHOUT_TEXTS.contains(name)) {
        let expected = recorded(name);
        // Two models cover every grid; the others cover their layers, and what stages send.
        let (whole, divided) = match is_on_all_grids(name) {
            true if *name != CARRIED => (4, &TENSOR[..]),
            _ => (if *name == CARRIED { 3 } else { 1 }, &TENSOR[1..2]),
        };
        // A single key and value head cannot be divided.
        let divided = if *name == WHOLE { &[][..] } else { divided };
        let context = if RECURRENT.contains(name) { &[][..] } else { &CONTEXT[1..2] };
        for grid in GRIDS[..whole].iter().chain(divided).chain(context) {
            let prompts = lists(&expected["prompts"]);
            let tokens = lists(&expected["tokens"]);
            // Tensor ranks do not divide this number of positions.
            let count = tokens[0].len() - 1;
            let options = SampleOptions { tokens: count, ..greedy(&folder(name), prompts) };
            let sampled = sample(SampleOptions { sets: sets(grid), ..options });
            let sampled: Vec<_> = sampled.texts.into_iter().map(|text| text.tokens).collect();
            // The end token is not part of a text.
            let ended =
                |text: Vec<u32>| text.into_iter().take(count).take_while(|token| *token != END).collect();
            let expected: Vec<Vec<u32>> = tokens.into_iter().map(ended).collect();
            assert_eq!(sampled, expected, "{name} {grid:?}");
        }
    }
}

#[test]
fn multiple_choice_is_scored_as_by_transformers_on_every_grid() {
    for name in WITH_QUESTIONS {
        let expected = recorded(name);
        let first = choices(&folder(name), &[]);
        let loss = expected["loss"].as_f64().unwrap();
        assert!((first.loss - loss).abs() < 1e-5 * loss, "{name}: {} and {loss}", first.loss);
        assert_eq!(first.tokens, expected["targets"].as_u64().unwrap(), "{name}");
        let scores = first.choices.unwrap();
        assert_eq!(scores.accuracy, expected["accuracy"].as_f64().unwrap(), "{name}");
        assert_eq!(scores.accuracy_per_token, expected["accuracy_per_token"].as_f64().unwrap(), "{name}");
        assert_eq!((scores.questions, scores.accuracy_per_byte), (24, None));
        let others = if is_on_all_grids(name) { GRIDS.len() } else { 2 };
        for grid in GRIDS[1..others].iter().chain(&SHARDED) {
            assert_eq!(choices(&folder(name), grid), first, "{name} {grid:?}");
        }
        if *name != WHOLE {
            let [of_lanes, one, several] = TENSOR.map(|grid| choices(&folder(name), grid));
            assert!((of_lanes.loss - loss).abs() < 1e-5 * loss, "{name}: {} and {loss}", of_lanes.loss);
            assert_eq!([&one, &several], [&of_lanes; 2], "{name}");
        }
        let [of_pieces, one, several] = CONTEXT.map(|grid| choices(&folder(name), grid));
        assert!((of_pieces.loss - loss).abs() < 1e-5 * loss, "{name}: {} and {loss}", of_pieces.loss);
        assert_eq!([&one, &several], [&of_pieces; 2], "{name}");
    }
}

#[test]
fn a_text_is_the_same_alone_beside_others_and_on_every_grid_and_memory_is_as_planned() {
    let prompts = ["The load ", "é", "pub fn of(", "\n", "x", "Returns", "a b", "#", "//!", "let"];
    let prompts: Vec<String> = prompts.iter().map(ToString::to_string).collect();
    for (text, options) in [(GPT, &[][..]), (LLAMA, &[]), (LLAMA, LATENTS)] {
        let directory = tempfile::tempdir().unwrap();
        let model = directory.path().join("run");
        train_in(&model, config(text, options), DeviceChoice::Cpu).unwrap();
        // 50 tokens exceed the context of 32, and ten prompts exceed the rows of a step.
        let options = SampleOptions {
            model,
            prompts: prompts.clone(),
            tokens: 50,
            top_k: 40,
            top_p: 0.95,
            repetition_penalty: 1.2,
            seeds: vec![7],
            ..SampleOptions::default()
        };
        let first = sample(options.clone());
        assert!(first.texts.iter().all(|text| text.tokens.len() == 50 && text.end == inference::End::Length));
        for grid in GRIDS {
            let (sampled, shown) = shown(SampleOptions { sets: sets(grid), ..options.clone() });
            assert_eq!(sampled.texts, first.texts, "{grid:?}");
            let whole = sampled.texts.iter().map(|text| format!("{}{}", text.prompt, text.text));
            assert_eq!(shown, whole.collect::<Vec<_>>(), "{grid:?}");
            for rank in &sampled.memory {
                assert_eq!(Some(rank.planned), rank.used, "{grid:?}");
                assert!(rank.planned.cache > 0 && rank.planned.peak_allocated > rank.planned.weights);
            }
            let plan_only = SampleOptions { sets: sets(grid), plan_only: true, ..options.clone() };
            let planned: Vec<_> = sample(plan_only).memory.iter().map(|rank| rank.planned).collect();
            assert_eq!(planned, sampled.memory.iter().map(|rank| rank.planned).collect::<Vec<_>>());
        }
        for (index, expected) in first.texts.iter().enumerate() {
            let alone = SampleOptions {
                prompts: vec![prompts[index].clone()],
                seeds: vec![7 + index as u64],
                ..options.clone()
            };
            assert_eq!(sample(alone).texts, std::slice::from_ref(expected));
        }
        // Prompts beyond a step's rows are continued later.
        for batch in [3, 100] {
            let batches = sample(SampleOptions { batch: Some(batch), ..options.clone() });
            assert_eq!(batches.texts, first.texts);
        }
    }
}

#[test]
fn on_a_gpu_a_text_is_the_same_alone_and_beside_others_and_memory_is_as_planned() {
    if !common::devices::gpu() {
        return;
    }
    for (text, precision) in [(GPT, "f32"), (LLAMA, "f32"), (GPT_WIDE, "bf16"), (LLAMA_WIDE, "bf16")] {
        let directory = tempfile::tempdir().unwrap();
        let model = directory.path().join("run");
        let precision = format!("precision.compute={precision}");
        let overrides = [precision.as_str(), "parallel.data=1"];
        train_in(&model, config(text, &overrides), DeviceChoice::Cuda).unwrap();
        let prompts: Vec<String> = (0..70).map(|at| format!("Text {at}{}", "x".repeat(at % 20))).collect();
        let options = SampleOptions {
            model,
            prompts: prompts.clone(),
            tokens: 40,
            top_p: 0.95,
            repetition_penalty: 1.2,
            seeds: vec![7],
            device: DeviceChoice::Cuda,
            ..SampleOptions::default()
        };
        let sample = |options: &SampleOptions| {
            inference::sample(Startup::alone(), options, Arc::new(|_| Ok(()))).unwrap().unwrap()
        };
        let together = sample(&options);
        for rank in &together.memory {
            assert_eq!(Some(rank.planned), rank.used, "{text}");
        }
        // Replayed steps draw the same, with the same memory.
        let replayed = sample(&SampleOptions { sets: sets(&["train.graphs=auto"]), ..options.clone() });
        assert_eq!((&replayed.texts, &replayed.memory), (&together.texts, &together.memory), "{text}");
        for index in [0, 13, 63, 64, 69] {
            let seeds = vec![7 + index as u64];
            let alone = SampleOptions { prompts: vec![prompts[index].clone()], seeds, ..options.clone() };
            assert_eq!(sample(&alone).texts, [together.texts[index].clone()], "{text} {index}");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_allocated() {
    let table: [(SampleOptions, &str); 7] = [
        (
            SampleOptions { prompts: vec!["a".to_owned()], ..greedy(&folder("models/gpt2"), vec![]) },
            "no tokenizer.json",
        ),
        (greedy(&folder("models/gpt2"), vec![vec![1 << 20]]), "token 1048576 is not among"),
        (
            greedy(&folder("models/gpt2"), vec![vec![1; 129]]),
            "129 tokens, more than the model's context of 128",
        ),
        (SampleOptions { top_p: 0.0, ..greedy(&folder("models/gpt2"), vec![vec![1]]) }, "--top-p 0"),
        (SampleOptions { batch: Some(0), ..greedy(&folder("models/gpt2"), vec![vec![1]]) }, "--batch 0"),
        (
            SampleOptions { chat: true, ..greedy(&folder("models/gpt2"), vec![vec![1]]) },
            "no chat_template.jinja",
        ),
        (
            SampleOptions {
                sets: vec!["memory.limit_bytes=65536".to_owned()],
                ..greedy(&folder("models/gpt2"), vec![vec![1]])
            },
            "does not fit",
        ),
    ];
    for (options, expected) in table {
        let options = SampleOptions { device: DeviceChoice::Cpu, ..options };
        let refused = inference::sample(Startup::alone(), &options, Arc::new(|_| Ok(()))).unwrap_err();
        assert!(refused.exit_status() == 2 && refused.to_string().contains(expected), "{refused}");
    }
}
