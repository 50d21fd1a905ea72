//! Folders with modules that predict later tokens: read, trained, written, carried and left out.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use device::DType;
use inference::ExportOptions;
use serde_json::{Value, json};
use worker::DeviceChoice;

use super::parts::{Stored, read, write};
use super::{folder, ten_steps};
use crate::common::runs::{config, train_in};

const WEIGHTS: &str = "model.safetensors";
const CONFIG: &str = "config.json";

/// Parts of a module and their names in the folder, which begin with the number of layers or with `mtp.`.
struct Names {
    folder: &'static str,
    /// Setting with the number of modules.
    count: &'static str,
    /// Prefix of the model's layers, and its token table and last norm.
    model: [&'static str; 3],
    /// Layers of the module: a part of the name of a tensor that the layer has, and the module's prefix.
    layers: &'static [(&'static str, &'static str)],
    embedding_norm: &'static str,
    hidden_norm: &'static str,
    projection: &'static str,
    norm: &'static str,
    copies: &'static [(&'static str, &'static str)],
}

const LLAMA: [&str; 3] = ["model.layers.", "model.embed_tokens.weight", "model.norm.weight"];

const FOLDERS: [Names; 3] = [
    Names {
        folder: "families/deepseek-v3",
        count: "num_nextn_predict_layers",
        model: LLAMA,
        layers: &[(".self_attn.", "model.layers.{L}.")],
        embedding_norm: "model.layers.{L}.enorm.weight",
        hidden_norm: "model.layers.{L}.hnorm.weight",
        projection: "model.layers.{L}.eh_proj.weight",
        norm: "model.layers.{L}.shared_head.norm.weight",
        copies: &[
            ("model.layers.{L}.embed_tokens.weight", "model.embed_tokens.weight"),
            ("model.layers.{L}.shared_head.head.weight", "lm_head.weight"),
        ],
    },
    Names {
        folder: "families/qwen3-next",
        count: "mtp_num_hidden_layers",
        model: LLAMA,
        layers: &[(".self_attn.", "mtp.layers.0.")],
        embedding_norm: "mtp.pre_fc_norm_embedding.weight",
        hidden_norm: "mtp.pre_fc_norm_hidden.weight",
        projection: "mtp.fc.weight",
        norm: "mtp.norm.weight",
        copies: &[],
    },
    Names {
        folder: "families/nemotron-h",
        count: "num_nextn_predict_layers",
        model: ["backbone.layers.", "backbone.embeddings.weight", "backbone.norm_f.weight"],
        layers: &[(".mixer.q_proj.", "mtp.layers.0."), (".mixer.gate.", "mtp.layers.1.")],
        embedding_norm: "mtp.layers.0.enorm.weight",
        hidden_norm: "mtp.layers.0.hnorm.weight",
        projection: "mtp.layers.0.eh_proj.weight",
        norm: "mtp.layers.1.final_layernorm.weight",
        copies: &[],
    },
];

/// Writes the recorded folder with a module, whose layers equal the last ones of their kind.
fn with_module(names: &Names, to: &Path) -> BTreeMap<String, Stored> {
    fs::create_dir(to).unwrap();
    let from = folder(names.folder);
    let mut tensors = read(&from.join(WEIGHTS));
    let mut text: Value = serde_json::from_slice(&fs::read(from.join(CONFIG)).unwrap()).unwrap();
    let at = |name: &str| name.replace("{L}", &text["num_hidden_layers"].to_string());
    let [prefix, table, norm] = names.model;
    let layer = |(part, own): &(&str, &str)| {
        let layer_of = |name: &String| name.strip_prefix(prefix)?.split_once(*part)?.0.parse::<usize>().ok();
        let last = tensors.keys().filter_map(layer_of).max().unwrap();
        let last = format!("{prefix}{last}.");
        let of_layer =
            |(name, tensor): (&String, &Stored)| Some((at(own) + name.strip_prefix(&last)?, tensor.clone()));
        tensors.iter().filter_map(of_layer).collect::<Vec<_>>()
    };
    let module: Vec<_> = names.layers.iter().flat_map(layer).collect();
    let norm = tensors[norm].clone();
    let (dtype, shape, bytes) = tensors[table].clone();
    let width = shape[1];
    let count = bytes.len() / shape[0] * 2 * width;
    let rows = bytes.iter().copied().cycle().skip(6).take(count).collect();
    let copies: Vec<_> = names.copies.iter().map(|(copy, of)| (at(copy), tensors[*of].clone())).collect();
    tensors.extend(module);
    tensors.extend(copies);
    tensors.insert(at(names.projection), (dtype, vec![width, 2 * width], rows));
    for name in [names.embedding_norm, names.hidden_norm, names.norm] {
        tensors.insert(at(name), norm.clone());
    }
    text[names.count] = json!(1);
    write(&tensors, &to.join(WEIGHTS));
    fs::write(to.join(CONFIG), serde_json::to_string_pretty(&text).unwrap()).unwrap();
    tensors
}

fn setting(folder: &Path, name: &str) -> Value {
    let text: Value = serde_json::from_slice(&fs::read(folder.join(CONFIG)).unwrap()).unwrap();
    text[name].clone()
}

#[test]
fn modules_are_read_trained_written_carried_and_left_out() {
    for names in &FOLDERS {
        let name = names.folder;
        let directory = tempfile::tempdir().unwrap();
        let at = |part: &str| directory.path().join(part);
        let tensors = with_module(names, &at("with"));
        let export = |model: &str, output: &str, without_mtp: bool| {
            // Runs write the type that their folder's configuration names.
            let dtype = (model != "with").then_some(DType::Bf16);
            let [model, output] = [model, output].map(&at);
            let options =
                ExportOptions { model, output: output.clone(), without_mtp, dtype, ..Default::default() };
            inference::export(&options).unwrap();
            read(&output.join(WEIGHTS))
        };
        // Modules that are not trained are copied or left out.
        assert!(export("with", "kept", false) == tensors, "{name}");
        assert_eq!(setting(&at("kept"), names.count), 1);
        let plain = read(&folder(name).join(WEIGHTS));
        assert!(export("with", "plain", true) == plain, "{name}");
        assert_eq!(setting(&at("plain"), names.count), 0);
        let train = |from: &str, run: &str, sets: &[&str]| {
            let text = ten_steps(name);
            let text = text.replace(&format!("from = {:?}", folder(name)), &format!("from = {:?}", at(from)));
            let sets = [&["train.steps=1", "checkpoint.every=1"], sets].concat();
            let config = config(&text, &sets);
            let notes = config.folder_notes().join("\n");
            (notes, train_in(&at(run), config, DeviceChoice::Cpu).unwrap().summary)
        };
        let (notes, _) = train("with", "apart", &[]);
        assert!(notes.contains("are not trained and go with an export unchanged"), "{notes}");
        let apart = export("apart", "carried", false);
        assert!(apart.keys().eq(tensors.keys()), "{name}");
        let of_module = |name: &&String| !plain.contains_key(*name);
        assert!(tensors.keys().filter(of_module).all(|name| apart[name] == tensors[name]), "{name}");
        // With hardly any learning rate, what was read is written.
        let still = ["optim.learning_rate=1e-30", "optim.min_learning_rate=1e-30", "train.predict_tokens=2"];
        let (notes, summary) = train("with", "still", &still);
        assert!(notes.contains("it has 1 of 1 modules"), "{notes}");
        assert!(summary.more["later_losses"][0].as_f64().unwrap().is_finite());
        assert!(export("still", "again", false) == tensors, "{name}");
        // Trained modules change; a folder without them gets drawn ones.
        train("with", "trained", &["train.predict_tokens=2"]);
        let trained = export("trained", "written", false);
        assert!(trained.keys().eq(tensors.keys()), "{name}");
        assert!(tensors.keys().filter(of_module).all(|name| trained[name].1 == tensors[name].1));
        assert!(
            tensors
                .keys()
                .filter(of_module)
                .filter(|name| name.contains("proj.w"))
                .any(|name| trained[name] != tensors[name])
        );
        assert_eq!(setting(&at("written"), names.count), 1);
        assert!(export("trained", "less", true).keys().eq(plain.keys()), "{name}");
        let (notes, _) = train("plain", "drawn", &["train.predict_tokens=2"]);
        assert!(
            notes.contains("it has 0 of 1 modules that predict later tokens, and the others are drawn"),
            "{notes}"
        );
        let drawn = export("drawn", "new", false);
        assert!(
            tensors
                .keys()
                .filter(|name| !names.copies.iter().any(|(copy, _)| name.ends_with(&copy[16..])))
                .all(|name| drawn.contains_key(name)),
            "{name}"
        );
        assert_eq!(setting(&at("new"), names.count), 1);
    }
}
