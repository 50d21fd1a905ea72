//! Builds tokenizer folders for tests.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test uses a part; a panic is the report of a failure"
)]

use std::fs;
use std::path::Path;

use data::Tokenizer;
use serde_json::{Map, Value, json};

/// Builds a `tokenizer.json` whose tokens are the bytes, the `merges`, and then special tokens.
pub(crate) fn byte_level(merges: &[[&str; 2]], special: &[&str]) -> Value {
    let mut described: Value = serde_json::from_slice(&Tokenizer::Bytes.json().unwrap()).unwrap();
    let vocabulary = described["model"]["vocab"].as_object_mut().unwrap();
    for [left, right] in merges {
        let number = vocabulary.len();
        vocabulary.insert(format!("{left}{right}"), number.into());
    }
    let number = vocabulary.len();
    described["model"]["merges"] = merges.iter().map(|[left, right]| format!("{left} {right}")).collect();
    described["added_tokens"] =
        special.iter().zip(number..).map(|(text, number)| added(number, text, true)).collect();
    described
}

/// Builds an added token's entry in `tokenizer.json`.
pub(crate) fn added(number: usize, text: &str, special: bool) -> Value {
    json!({
        "id": number, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": special,
    })
}

/// Builds a `tokenizer.json` like Llama 2's: `<unk>`, `<s>`, `</s>`, bytes, the mark for a space, visible
/// ASCII characters, and then `words` after the mark. Texts begin with `<s>` and end with `ends`.
pub(crate) fn sentence_pieces(words: &[&str], ends: &[&str]) -> Value {
    let mut vocabulary = Map::new();
    let mut add = |text: String| {
        let number = vocabulary.len();
        vocabulary.entry(text).or_insert(number.into());
    };
    ["<unk>", "<s>", "</s>"].map(str::to_owned).into_iter().for_each(&mut add);
    (0..=255_u8).map(|byte| format!("<0x{byte:02X}>")).for_each(&mut add);
    add("\u{2581}".to_owned());
    ('!'..='~').map(String::from).for_each(&mut add);
    let mut merges: Vec<String> = Vec::new();
    for word in words {
        let mut before = "\u{2581}".to_owned();
        for character in word.chars() {
            let merge = format!("{before} {character}");
            before.push(character);
            add(before.clone());
            if !merges.contains(&merge) {
                merges.push(merge);
            }
        }
    }
    let special = |text: &str| json!({"SpecialToken": {"id": text, "type_id": 0}});
    let mut single = vec![special("<s>"), json!({"Sequence": {"id": "A", "type_id": 0}})];
    single.extend(ends.iter().map(|end| special(end)));
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [added(0, "<unk>", true), added(1, "<s>", true), added(2, "</s>", true)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u{2581}"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
        ]},
        "pre_tokenizer": null,
        "post_processor": {
            "type": "TemplateProcessing", "single": single,
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {
                "<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]},
                "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]},
            },
        },
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "vocab": vocabulary,
            "merges": merges,
        },
    })
}

/// Writes a tokenizer and the files beside it.
pub(crate) fn write(folder: &Path, tokenizer: &Value, beside: &[(&str, Value)]) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    for (name, contents) in beside {
        let text = contents.as_str().map_or_else(|| contents.to_string(), str::to_owned);
        fs::write(folder.join(name), text).unwrap();
    }
}

/// Opens the tokenizer of a folder.
pub(crate) fn open(folder: &Path) -> Result<Tokenizer, data::Error> {
    Tokenizer::from_name(folder.to_str().unwrap())
}

/// Returns a tokenizer with files beside it.
pub(crate) fn tokenizer(described: &Value, beside: &[(&str, Value)]) -> Tokenizer {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), described, beside);
    open(directory.path()).unwrap()
}
