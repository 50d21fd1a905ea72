//! Tests of models with more tokens than their original folder, and with longer sequences.

use std::fs;
use std::path::Path;
use std::process::Command;

use inference::{EvaluateOptions, ExportOptions};
use run::RunOptions;
use safetensors::SafeTensors;
use serde_json::Value;
use worker::DeviceChoice;

use super::transformers::LOAD;
use super::{GRIDS, changed, evaluate, ten_steps};
use crate::common::python::python_with;
use crate::common::runs::{config, on_cpu, train_in};
use crate::families::{folder, is_on_all_grids};

/// Settings that add 50 tokens to the recorded models.
const RESIZED: [&str; 2] = ["model.vocabulary=818", "model.resize_vocabulary=true"];
/// Numbers of recorded tokens and of added tokens; training data has only recorded ones.
const TOKENS: usize = 768;
const ADDED: usize = 50;

fn export(run: &Path, output: &Path, merge: bool) {
    let model = run.to_owned();
    let output = output.to_owned();
    inference::export(&ExportOptions { model, output, merge, ..Default::default() }).unwrap();
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Returns the rows of a table in a folder.
fn table(folder: &Path, name: &str) -> Vec<Vec<f32>> {
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = file.tensor(name).unwrap();
    let values: Vec<f32> = tensor.data().as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect();
    values.chunks(tensor.shape()[1]).map(<[f32]>::to_vec).collect()
}

#[test]
fn added_tokens_begin_as_the_mean_of_the_others() {
    for (name, tables) in [
        ("models/gpt2", &["transformer.wte.weight"][..]),
        ("models/llama", &["model.embed_tokens.weight", "lm_head.weight"]),
        ("models/qwen3", &["model.embed_tokens.weight"]),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let run = directory.path().join("run");
        let out = directory.path().join("out");
        let sets =
            [&RESIZED[..], &["train.steps=1", "optim.learning_rate=1e-30", "optim.min_learning_rate=0"]];
        train_in(&run, config(&ten_steps(name), &sets.concat()), DeviceChoice::Cpu).unwrap();
        export(&run, &out, false);
        assert_eq!(json(&out.join("config.json"))["vocab_size"], TOKENS + ADDED, "{name}");
        for table_name in tables {
            let before = table(&folder(name), table_name);
            let after = table(&out, table_name);
            assert_eq!((before.len(), after.len()), (TOKENS, TOKENS + ADDED), "{name} {table_name}");
            assert!(after[..TOKENS] == before[..], "{name} {table_name}");
            for (column, value) in after[TOKENS].iter().enumerate() {
                let mean = before.iter().map(|row| f64::from(row[column])).sum::<f64>() / TOKENS as f64;
                assert_eq!(*value, mean as f32, "{name} {table_name} {column}");
            }
            assert!(after[TOKENS..].iter().all(|row| *row == after[TOKENS]), "{name} {table_name}");
        }
    }
}

#[test]
fn a_resized_model_has_equal_bits_on_every_grid_and_is_written() {
    for name in ["models/gpt2", "models/llama"] {
        let directory = tempfile::tempdir().unwrap();
        let at = |part: &str| directory.path().join(part);
        let mut hashes = Vec::new();
        let grids = GRIDS.iter().copied().chain([&["parallel.data=2", "parallel.zero_stage=1"][..]]);
        for (number, grid) in grids.enumerate().take(if is_on_all_grids(name) { GRIDS.len() + 1 } else { 2 })
        {
            let run = at(&format!("run-{number}"));
            let steps = ["train.steps=3", "checkpoint.every=3"];
            let text = config(&ten_steps(name), &[&RESIZED[..], &steps, grid].concat());
            let report = train_in(&run, text, DeviceChoice::Cpu).unwrap();
            assert_eq!(report.unplanned, Some(vec![]), "{name} {grid:?}");
            hashes.push(report.summary.weights_sha256);
        }
        assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{name}: {hashes:?}");
        let of_run = evaluate(EvaluateOptions { model: at("run-0"), ..Default::default() }).unwrap();
        export(&at("run-0"), &at("out"), false);
        let tokens = folder(name).join("tokens.bin").display().to_string();
        let options =
            EvaluateOptions { model: at("out"), data: vec![tokens], context: Some(96), ..Default::default() };
        assert_eq!(evaluate(options).unwrap().loss, of_run.loss, "{name}");
        let Some(python) = python_with(&["torch", "transformers"]) else { continue };
        let loaded =
            Command::new(&python).args(["-c", LOAD]).arg(at("out")).arg(folder(name)).output().unwrap();
        assert!(loaded.status.success(), "{}", String::from_utf8_lossy(&loaded.stderr));
        let loss: f64 = String::from_utf8_lossy(&loaded.stdout).trim().parse().unwrap();
        assert!((loss - of_run.loss).abs() < 1e-5 * of_run.loss, "{name}: {loss} and {of_run}");
    }
}

/// Checks that a checkpoint of adapters omits the resized model, which is read from its folder again.
#[test]
fn adapters_of_a_resized_model_are_resumed_and_merged() {
    let directory = tempfile::tempdir().unwrap();
    let at = |part: &str| directory.path().join(part);
    let sets = [&RESIZED[..], &["lora.rank=4", "checkpoint.every=5"]].concat();
    let text = ten_steps("models/llama").replace("[checkpoint]\nevery = 10\n", "");
    let whole = train_in(&at("whole"), config(&text, &sets), DeviceChoice::Cpu).unwrap();
    let parts = [&sets[..], &["train.steps=5"]].concat();
    train_in(&at("parts"), config(&text, &parts), DeviceChoice::Cpu).unwrap();
    let options = RunOptions { resume: true, ..on_cpu(&at("parts")) };
    let longer = config(&text, &[&sets[..], &["train.steps=10", "parallel.data=2"]].concat());
    let resumed = run::train(longer, options).unwrap();
    // The first half's cosine schedule was shorter, so only its earlier state is compared.
    assert_eq!(resumed.summary.losses.len(), whole.summary.losses.len());
    let loss =
        |model: &Path| evaluate(EvaluateOptions { model: model.to_owned(), ..Default::default() }).unwrap();
    let of_run = loss(&at("whole"));
    export(&at("whole"), &at("merged"), true);
    assert_eq!(table(&at("merged"), "lm_head.weight").len(), TOKENS + ADDED);
    let tokens = folder("models/llama").join("tokens.bin").display().to_string();
    let options =
        EvaluateOptions { model: at("merged"), data: vec![tokens], context: Some(96), ..Default::default() };
    let merged = evaluate(options).unwrap().loss;
    assert!((merged - of_run.loss).abs() < 1e-5 * of_run.loss, "{merged} {of_run}");
}

#[test]
fn more_tokens_are_refused_with_the_way_to_add_them() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let refused =
        train_in(&run, config(&ten_steps("models/llama"), &RESIZED[..1]), DeviceChoice::Cpu).unwrap_err();
    let text = refused.to_string();
    assert!(
        text.contains("[768, ") && text.contains("model.resize_vocabulary = true adds the rows"),
        "{text}"
    );
    let parse = |sets: &[&str]| {
        let sets: Vec<String> = sets.iter().map(ToString::to_string).collect();
        vision::register().unwrap();
        config::RunConfig::parse(&ten_steps("models/llama"), "test.toml", Path::new("/"), &sets)
    };
    // A tokenizer with more tokens is refused if the data contains them.
    let fits = parse(&["data.tokenizer=gpt2", "train.steps=1"]).unwrap();
    train_in(&directory.path().join("fits"), fits, DeviceChoice::Cpu).unwrap();
    let words = directory.path().join("words.txt");
    fs::write(&words, "hello world ".repeat(1000)).unwrap();
    let paths = format!("data.paths=[{:?}]", words.display().to_string());
    let cache = format!("data.cache={:?}", directory.path().join("cache").display().to_string());
    let sets = ["data.kind=text", "data.tokenizer=gpt2", &paths, "data.validation_paths=[]", &cache];
    let refused = train_in(&run, parse(&sets).unwrap(), DeviceChoice::Cpu).unwrap_err();
    assert_eq!(refused.exit_status(), 2);
    let text = refused.to_string();
    assert!(
        text.contains("token 50256 at position 0 is not below the vocabulary of 768: the tokenizer has more")
            && text.contains("model.resize_vocabulary = true adds rows"),
        "{text}"
    );
    let grown = parse(&["data.tokenizer=gpt2", "model.resize_vocabulary=true"]).unwrap();
    assert!(grown.to_toml().contains("\nvocabulary = 50304\n"), "{}", grown.to_toml());
    assert_eq!(grown.with(&[]).unwrap(), grown);
    // A sufficient vocabulary is unchanged.
    let unchanged = parse(&["data.tokenizer=bytes", "model.resize_vocabulary=true"]).unwrap();
    assert!(unchanged.to_toml().contains("\nvocabulary = 768\n"));
    let fewer = parse(&["model.vocabulary=700", "model.resize_vocabulary=true"]).unwrap();
    let text = train_in(&run, fewer, DeviceChoice::Cpu).unwrap_err().to_string();
    assert!(text.contains("[768, ") && !text.contains("resize"), "{text}");
}

/// Checks that sequences longer than the folder's context cause a warning, and the exported folder states the
/// new length.
#[test]
fn longer_sequences_than_the_folder_was_made_for_are_written() {
    let directory = tempfile::tempdir().unwrap();
    let at = |part: &str| directory.path().join(part);
    changed("models/llama", &at("short"), "max_position_embeddings", 48.into());
    let text = ten_steps("models/llama").replacen(
        &format!("from = {:?}", folder("models/llama")),
        &format!("from = {:?}", at("short")),
        1,
    );
    let context = |tokens: &str| config(&text, &[tokens, "train.steps=1"]);
    assert_eq!(context("model.context=48").context_advice(), None);
    let advice = context("model.context=96").context_advice().unwrap();
    assert!(advice.contains("model.context = 96 is above the 48 positions"), "{advice}");
    train_in(&at("run"), context("model.context=96"), DeviceChoice::Cpu).unwrap();
    export(&at("run"), &at("out"), false);
    let [before, after] = ["short", "out"].map(|part| json(&at(part).join("config.json")));
    assert_eq!(after["max_position_embeddings"], 96);
    for (key, value) in before.as_object().unwrap() {
        assert!(key == "max_position_embeddings" || after[key] == *value, "{key}");
    }
}
