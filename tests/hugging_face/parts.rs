//! Folders of models with further parts, such as images: their language model is trained.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use inference::{EvaluateOptions, ExportOptions};
use safetensors::tensor::{Dtype, TensorView, View};
use serde_json::{Value, json};
use worker::DeviceChoice;

use super::{evaluate, expected, most_error, near, ten_steps};
use crate::common::runs::{config, train_in};
use crate::families::folder;

/// A tensor with its type, shape and bytes.
pub(super) type Stored = (Dtype, Vec<usize>, Vec<u8>);

struct Owned<'a>(&'a Stored);

impl View for Owned<'_> {
    fn dtype(&self) -> Dtype {
        self.0.0
    }

    fn shape(&self) -> &[usize] {
        &self.0.1
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.0.2)
    }

    fn data_len(&self) -> usize {
        self.0.2.len()
    }
}

pub(super) fn read(file: &Path) -> BTreeMap<String, Stored> {
    let bytes = fs::read(file).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let stored = |tensor: TensorView<'_>| (tensor.dtype(), tensor.shape().to_vec(), tensor.data().to_vec());
    tensors.tensors().into_iter().map(|(name, tensor)| (name, stored(tensor))).collect()
}

pub(super) fn write(tensors: &BTreeMap<String, Stored>, file: &Path) {
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let views = tensors.iter().map(|(name, tensor)| (name.clone(), Owned(tensor)));
    safetensors::tensor::serialize_to_file(views, Some(metadata), file).unwrap();
}

/// Writes the recorded language model `name` as a part of the model `outer`, with tensors and files of
/// images.
/// `renamed` maps the prefix `model.` of its tensors, and the head's prefix.
fn with_images(name: &str, outer: &str, renamed: [&str; 2], to: &Path) {
    fs::create_dir(to).unwrap();
    let mut tensors = BTreeMap::new();
    for (name, tensor) in read(&folder(name).join("model.safetensors")) {
        let name = match name.strip_prefix("model.") {
            Some(rest) => format!("{}{rest}", renamed[0]),
            None => format!("{}{name}", renamed[1]),
        };
        tensors.insert(name, tensor);
    }
    let bytes = |count: usize| (0..count).map(|at| (at * 7 % 251) as u8).collect::<Vec<_>>();
    tensors.insert("model.vision_tower.patch.weight".to_owned(), (Dtype::F32, vec![3, 5], bytes(60)));
    tensors.insert("model.vision_tower.position_ids".to_owned(), (Dtype::I64, vec![4], bytes(32)));
    let projector = "model.multi_modal_projector.mm_input_projection_weight".to_owned();
    tensors.insert(projector, (Dtype::BF16, vec![2, 4], bytes(16)));
    write(&tensors, &to.join("model.safetensors"));
    let text = fs::read(folder(name).join("config.json")).unwrap();
    let mut text: Value = serde_json::from_slice(&text).unwrap();
    if outer.starts_with("qwen3_5") {
        text["rope_parameters"]["mrope_section"] = json!([1, 1, 1]);
    }
    let whole = json!({
        "architectures": ["ForConditionalGeneration"], "dtype": "float32", "image_token_index": 10,
        "model_type": outer, "text_config": text, "vision_config": {"hidden_size": 5},
    });
    fs::write(to.join("config.json"), whole.to_string()).unwrap();
    fs::write(to.join("preprocessor_config.json"), "{\"size\": 5}").unwrap();
    fs::copy(folder(name).join("generation_config.json"), to.join("generation_config.json")).unwrap();
}

const FOLDERS: [(&str, &str, [&str; 2]); 5] = [
    ("families/gemma3", "gemma3", ["model.language_model.", ""]),
    ("families/gemma4", "gemma4", ["model.language_model.", ""]),
    ("families/ministral3", "mistral3", ["language_model.model.", "language_model."]),
    ("families/qwen3.5", "qwen3_5", ["model.language_model.", ""]),
    ("families/qwen3.5-moe", "qwen3_5_moe", ["model.language_model.", ""]),
];

/// Returns the configuration of ten steps from the folder `whole`, which has the recorded model `name`.
fn ten_steps_from(name: &str, whole: &Path) -> String {
    ten_steps(name)
        .replace(&format!("from = {:?}", folder(name)), &format!("from = {:?}", whole.display().to_string()))
}

/// Asserts that a folder's export has the same names, and equal tensors of images. Returns the number of
/// tensors that differ.
fn other_parts_are_kept(folder: &Path, export: &Path) -> usize {
    let [before, after] = [folder, export].map(|at| read(&at.join("model.safetensors")));
    assert!(before.keys().eq(after.keys()), "{}", folder.display());
    for (tensor, stored) in &before {
        if tensor.contains("vision") || tensor.contains("projector") {
            assert!(after[tensor] == *stored, "{}: {tensor}", folder.display());
        }
    }
    before.iter().filter(|(tensor, stored)| after[*tensor] != **stored).count()
}

#[test]
fn an_epoch_of_adapters_is_merged_into_a_folder_with_other_parts() {
    let directory = tempfile::tempdir().unwrap();
    let [whole, run_dir, merged] = ["whole", "run", "merged"].map(|part| directory.path().join(part));
    with_images("families/qwen3.5", "qwen3_5", ["model.language_model.", ""], &whole);
    let text = ten_steps_from("families/qwen3.5", &whole).replace("steps = 10", "epochs = 1");
    let config = config(&text, &["lora.rank=4", "checkpoint.every=1", "optim.learning_rate=1e-2"]);
    let report = train_in(&run_dir, config, DeviceChoice::Cpu).unwrap();
    assert!(report.summary.losses.iter().all(|loss| loss.is_finite()));
    let options = ExportOptions { model: run_dir, output: merged.clone(), merge: true, ..Default::default() };
    inference::export(&options).unwrap();
    // Linear layers of attention, of linear attention and of the feed-forward layers have adapters.
    let changed = other_parts_are_kept(&whole, &merged);
    assert!(changed > 10, "{changed} tensors changed");
}

#[test]
fn the_language_model_is_trained_and_other_parts_are_carried_through_exports() {
    vision::register().unwrap();
    for (name, outer, renamed) in FOLDERS {
        let directory = tempfile::tempdir().unwrap();
        let [whole, out, trained] = ["whole", "out", "trained"].map(|part| directory.path().join(part));
        with_images(name, outer, renamed, &whole);
        let tokens = folder(name).join("tokens.bin").display().to_string();
        let options = EvaluateOptions {
            model: whole.clone(),
            data: vec![tokens],
            context: Some(96),
            ..Default::default()
        };
        let evaluation = evaluate(options).unwrap();
        assert!(near(evaluation.loss, &expected(name)["loss"], 1e-6), "{name}: {evaluation}");
        let options = ExportOptions { model: whole.clone(), output: out.clone(), ..Default::default() };
        inference::export(&options).unwrap();
        let files =
            ["model.safetensors", "config.json", "generation_config.json", "preprocessor_config.json"];
        for file in files {
            let [before, after] = [&whole, &out].map(|at| fs::read(at.join(file)).unwrap());
            assert!(before == after, "{name}: {file}");
        }
        let text = ten_steps_from(name, &whole);
        let run_dir = directory.path().join("run");
        let config = config(&text, &["train.steps=2", "checkpoint.every=2"]);
        let notes = config.folder_notes();
        assert!(notes.iter().any(|note| note.contains("3 tensors of other parts")), "{notes:?}");
        let report = train_in(&run_dir, config, DeviceChoice::Cpu).unwrap();
        for (step, loss) in report.summary.losses.iter().enumerate() {
            let recorded = &expected(name)["adamw"]["losses"][step];
            assert!(near(f64::from(*loss), recorded, most_error(name, step)), "{name}: {loss}");
        }
        let options = ExportOptions { model: run_dir.clone(), output: trained.clone(), ..Default::default() };
        inference::export(&options).unwrap();
        other_parts_are_kept(&whole, &trained);
        assert!(trained.join("preprocessor_config.json").exists());
        // Without its folder, the language model is written alone.
        fs::rename(&whole, directory.path().join("moved")).unwrap();
        let alone = directory.path().join("alone");
        let options = ExportOptions { model: run_dir, output: alone.clone(), ..Default::default() };
        inference::export(&options).unwrap();
        assert!(read(&alone.join("model.safetensors")).keys().all(|name| !name.contains("language_model")));
    }
}
