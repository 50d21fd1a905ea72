//! Comparisons with transformers; reported as skipped without Python's torch and transformers.

use std::fs;
use std::path::Path;
use std::process::Command;

use inference::{EvaluateOptions, ExportOptions};
use run::Startup;
use serde_json::{Value, json};
use worker::DeviceChoice;

use super::{greedy, lists, recorded, sample};
use crate::common::python::python_with;
use crate::common::root;
use crate::common::runs::{GPT, LLAMA, config, train_in};
use crate::families::{WITH_QUESTIONS, folder};

/// Python script that generates from a model folder.
const GENERATE: &str = r#"
import json, sys
import torch, transformers
folder, asked = sys.argv[1], json.loads(sys.argv[2])
model = transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)
tokens = []
for prompt in asked:
    ids = torch.tensor([prompt])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=64,
                            min_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=0)
    tokens.append(output[0, len(prompt):].tolist())
print(json.dumps(tokens))
"#;

/// Runs a Python script. Returns the JSON on the last line of its output.
fn run(python: &str, script: &str, arguments: &[&str]) -> Value {
    let output = Command::new(python).args(["-c", script]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let message = String::from_utf8_lossy(&output.stdout).into_owned();
    serde_json::from_str(message.lines().last().unwrap()).unwrap()
}

#[test]
fn transformers_generate_the_same_from_an_exported_folder() {
    let Some(python) = python_with(&["torch", "transformers"]) else { return };
    for name in WITH_QUESTIONS {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out");
        let options = ExportOptions { model: folder(name), output: out.clone(), ..Default::default() };
        inference::export(&options).unwrap();
        let prompts = lists(&recorded(name)["prompts"]);
        let ours: Vec<_> =
            sample(greedy(&out, prompts.clone())).texts.into_iter().map(|text| text.tokens).collect();
        let asked = serde_json::to_string(&prompts).unwrap();
        let theirs = lists(&run(&python, GENERATE, &[out.to_str().unwrap(), &asked]));
        assert_eq!(ours, theirs, "{name}");
    }
}

/// Python script that scores questions by the sum of an ending's log-probabilities, and by its mean over
/// tokens and over bytes.
const CHOOSE: &str = r#"
import json, sys
import torch, transformers
from tokenizers import Tokenizer
folder, file = sys.argv[1:]
model = transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32).double()
encode = lambda text: Tokenizer.from_file(folder + "/tokenizer.json").encode(text, add_special_tokens=False).ids
right, questions, losses = [0, 0, 0, 0], 0, []
for line in map(json.loads, open(file)):
    context, scores = encode(line["context"]), []
    for ending in line["endings"]:
        tokens = encode(line["context"] + " " + ending)[len(context):]
        with torch.no_grad():
            logits = model(torch.tensor([context + tokens])).logits[0, len(context) - 1:-1]
        log_probs = logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])
        losses += (-log_probs[:, 0]).tolist()
        total = log_probs.sum().item()
        scores.append([total, total / len(tokens), total / len(ending), total / len(ending.encode())])
    questions += 1
    for way in range(4):
        best = max(range(len(scores)), key=lambda at: scores[at][way])
        right[way] += best == line["label"]
print(json.dumps([share / questions for share in right] + [sum(losses) / len(losses), len(losses)]))
"#;

#[test]
fn questions_in_json_lines_are_scored_as_by_transformers() {
    let Some(python) = python_with(&["torch", "transformers"]) else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("questions.jsonl");
    let words: Vec<&str> =
        include_str!("mod.rs").split_whitespace().filter(|word| word.is_ascii() && word.len() < 16).collect();
    let question = |at: usize| {
        let context = words[at * 5..at * 5 + 7].join(" ");
        let endings: Vec<_> =
            (0..4).map(|end| words[300 + at + end * 11..][..1 + (at + end) % 4].join(" ")).collect();
        json!({"context": context, "endings": endings, "label": at % 4}).to_string() + "\n"
    };
    fs::write(&file, (0..20).map(question).collect::<String>()).unwrap();
    let tokenizer = directory.path().join("tokenizer.json");
    tokenize::train_tokenizer(vec![root().join("README.md")], 600, "text", &tokenizer).unwrap();
    for name in WITH_QUESTIONS {
        let model = directory.path().join(name);
        let options = ExportOptions { model: folder(name), output: model.clone(), ..Default::default() };
        inference::export(&options).unwrap();
        fs::copy(&tokenizer, model.join("tokenizer.json")).unwrap();
        let options = EvaluateOptions {
            model: model.clone(),
            choices: Some(file.clone()),
            device: DeviceChoice::Cpu,
            ..EvaluateOptions::default()
        };
        let ours = inference::evaluate(Startup::alone(), &options).unwrap().unwrap();
        let choices = ours.choices.unwrap();
        let theirs = run(&python, CHOOSE, &[model.to_str().unwrap(), file.to_str().unwrap()]);
        let of_texts = [choices.accuracy_per_character, choices.accuracy_per_byte].map(Option::unwrap);
        let shares = [choices.accuracy, choices.accuracy_per_token, of_texts[0], of_texts[1]];
        assert_eq!(json!(shares), json!(theirs.as_array().unwrap()[..4]), "{name}");
        let loss = theirs[4].as_f64().unwrap();
        assert!((ours.loss - loss).abs() < 1e-5 * loss, "{name}: {} and {loss}", ours.loss);
        assert_eq!(theirs[5], ours.tokens, "{name}");
    }
}

/// Python script that strictly loads the tokenizer and model of a folder, and encodes texts.
const ENCODE: &str = r#"
import json, sys
import torch, transformers
folder, texts = sys.argv[1], json.loads(sys.argv[2])
_, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
tokens = [tokenizer.encode(text) for text in texts]
print(json.dumps([tokens, [tokenizer.decode(one) for one in tokens]]))
"#;

/// Checks that a run's tokenizer is exported, whether or not the vocabulary is padded.
#[test]
fn transformers_load_tokenizers_of_exported_runs() {
    let Some(python) = python_with(&["torch", "transformers"]) else { return };
    let texts = ["pub fn of()", "h\u{E9}  \u{20AC} 12\n\n don't", " <|endoftext|>x"];
    let table: [(&str, &[&str]); 4] = [
        (GPT, &["data.tokenizer=gpt2"]),
        (LLAMA, &["data.tokenizer=gpt2", "model.tied=true"]),
        (LLAMA, &["data.tokenizer=bytes"]),
        (GPT, &["data.tokenizer={files}/tokenizer.json", "data.cache={files}/cache", "model.tied=false"]),
    ];
    for (text, sets) in table {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let sets = [sets, &["train.steps=1", "checkpoint.every=1"]].concat();
        let config = config(text, &sets);
        let tokenizer = config.tokenizer.clone();
        train_in(&at("run"), config, DeviceChoice::Cpu).unwrap();
        let options = ExportOptions { model: at("run"), output: at("out"), ..Default::default() };
        inference::export(&options).unwrap();
        let folder = |name: &str| -> String { Path::new(&at(name)).display().to_string() };
        let asked = serde_json::to_string(&texts).unwrap();
        let theirs = run(&python, ENCODE, &[&folder("out"), &asked]);
        let ours: Vec<Vec<u32>> = texts.iter().map(|text| tokenizer.encode_prompt(text).unwrap()).collect();
        assert_eq!(lists(&theirs[0]), ours, "{sets:?}");
        let decoded: Vec<_> = ours.iter().map(|tokens| tokenizer.decode(tokens)).collect();
        assert_eq!(theirs[1], json!(decoded), "{sets:?}");
    }
}
