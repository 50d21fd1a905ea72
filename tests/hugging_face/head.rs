//! Tests of folders with a separate head although their configuration ties it to the embedding.

use std::fs;
use std::path::Path;

use inference::{EvaluateOptions, ExportOptions};
use safetensors::SafeTensors;
use safetensors::tensor::{TensorView, serialize_to_file};
use serde_json::{Value, json};

use super::{evaluate, ten_steps};
use crate::common::runs::{config, train_in};
use crate::families::folder;
use worker::DeviceChoice;

/// Writes a copy of a recorded folder, tied or not, whose head is the embedding times `factor`.
fn with_head(name: &str, to: &Path, is_tied: bool, factor: f32) {
    fs::create_dir(to).unwrap();
    let mut settings: Value =
        serde_json::from_slice(&fs::read(folder(name).join("config.json")).unwrap()).unwrap();
    settings["tie_word_embeddings"] = json!(is_tied);
    fs::write(to.join("config.json"), settings.to_string()).unwrap();
    let bytes: &'static [u8] = fs::read(folder(name).join("model.safetensors")).unwrap().leak();
    let mut tensors = SafeTensors::deserialize(bytes).unwrap().tensors();
    tensors.retain(|(name, _)| name != "lm_head.weight");
    let is_table = |name: &str| name.ends_with("embed_tokens.weight") || name.ends_with("wte.weight");
    let table = tensors.iter().find(|(name, _)| is_table(name)).unwrap().1.clone();
    let values = table.data().as_chunks::<4>().0.iter().map(|value| factor * f32::from_le_bytes(*value));
    let values: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
    let head = TensorView::new(table.dtype(), table.shape().to_vec(), values.leak()).unwrap();
    tensors.push(("lm_head.weight".to_owned(), head));
    serialize_to_file(tensors, None, &to.join("model.safetensors")).unwrap();
}

fn loss(name: &str, at: &Path) -> f64 {
    let data = vec![folder(name).join("tokens.bin").display().to_string()];
    let options = EvaluateOptions { model: at.to_owned(), data, context: Some(96), ..Default::default() };
    evaluate(options).unwrap().loss
}

fn tensor(folder: &Path, name: &str) -> Vec<u8> {
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    SafeTensors::deserialize(&bytes).unwrap().tensor(name).unwrap().data().to_vec()
}

/// Expects both matrices to be kept, as in transformers.
#[test]
fn a_head_that_differs_from_its_tied_embedding_is_kept() {
    for name in ["models/gpt2", "models/qwen2"] {
        let directory = tempfile::tempdir().unwrap();
        let at = |part: &str| directory.path().join(part);
        with_head(name, &at("tied"), true, 1.5);
        with_head(name, &at("apart"), false, 1.5);
        with_head(name, &at("copy"), true, 1.0);
        let [tied, apart, copy, plain] =
            [at("tied"), at("apart"), at("copy"), folder(name)].map(|at| loss(name, &at));
        assert_eq!((tied, copy), (apart, plain), "{name}");
        assert!((tied - plain).abs() > 1e-3, "{name}: {tied}, {plain}");
        // An export keeps the head, and describes the same model.
        let options = ExportOptions { model: at("tied"), output: at("exported"), ..Default::default() };
        inference::export(&options).unwrap();
        assert_eq!(tensor(&at("exported"), "lm_head.weight"), tensor(&at("tied"), "lm_head.weight"));
        assert_eq!(loss(name, &at("exported")), tied, "{name}");
        // Training reports that it keeps both, and trains both.
        let text = |part: &str| {
            ten_steps(name).replace(&format!("from = {:?}", folder(name)), &format!("from = {:?}", at(part)))
        };
        let sets = ["train.steps=2", "checkpoint.every=0"];
        let [tied, apart] = ["tied", "apart"].map(|part| {
            let parsed = config(&text(part), &sets);
            let notes = parsed.folder_notes();
            assert_eq!(
                notes.iter().filter(|note| note.contains("both are kept")).count(),
                usize::from(part == "tied")
            );
            train_in(&at(&format!("run-{part}")), parsed, DeviceChoice::Cpu).unwrap().summary
        });
        assert_eq!(tied.losses, apart.losses, "{name}");
        // If the configuration forces tying, a different head would be lost.
        let forced = config(&text("tied"), &[&sets[..], &["model.tied=true"]].concat());
        let refused = run::train(forced, run::RunOptions { quiet: true, ..Default::default() }).unwrap_err();
        let expected = "with which this model ties it: model.tied = false keeps both";
        assert!(refused.to_string().contains(expected), "{refused}");
    }
}
