//! Tests of the default of `data.tokenizer`, and of the warning about a tokenizer that is not the model's.

use super::*;
use data::Tokenizer;
use std::fs;
use tempfile::TempDir;

/// Creates a folder of a GPT-2 with 768 tokens.
fn folder() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/gpt2/config.json");
    fs::create_dir(directory.path().join("model")).unwrap();
    fs::copy(golden, directory.path().join("model/config.json")).unwrap();
    directory
}

/// Builds a configuration in `directory` that fine-tunes the folder's model.
fn tuned(directory: &TempDir, overrides: &[&str]) -> RunConfig {
    let text = format!("[model]\nfrom = \"./model\"\n{LEAST}");
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    families();
    RunConfig::parse(&text, "tuned.toml", directory.path(), &overrides).unwrap()
}

#[test]
fn the_tokenizer_of_the_folder_is_the_default() {
    let directory = folder();
    let file = directory.path().join("model/tokenizer.json");
    assert_eq!(tuned(&directory, &[]).tokenizer, Tokenizer::Bytes);
    // A vocabulary that the model has.
    fs::write(&file, Tokenizer::Bytes.json().unwrap()).unwrap();
    let of_folder = Tokenizer::from_name(file.to_str().unwrap()).unwrap();
    for (set, expected) in [
        ("data.kind=text", &of_folder),
        ("data.kind=chat", &of_folder),
        ("model.from_config=true", &of_folder),
        ("data.kind=tokens", &Tokenizer::None),
        ("data.kind=synthetic", &Tokenizer::Bytes),
        ("data.tokenizer=bytes", &Tokenizer::Bytes),
    ] {
        let config = tuned(&directory, &[set]);
        assert_eq!(&config.tokenizer, expected, "{set}");
        // The resolved configuration names it from any directory.
        assert_eq!(&config.with(&[]).unwrap().tokenizer, expected, "{set}");
    }
}

#[test]
fn another_tokenizer_than_that_of_the_model_is_a_warning() {
    let directory = folder();
    let (own, other) =
        (directory.path().join("model/tokenizer.json"), directory.path().join("tokenizer.json"));
    let warning = |sets: &[&str]| tuned(&directory, sets).tokenizer_warning().unwrap_or_default();
    // The folder has none: only the numbers of tokens are known.
    let expected = "data.tokenizer = \"bytes\" has 256 tokens and the model of ";
    assert!(warning(&[]).starts_with(expected), "{}", warning(&[]));
    assert_eq!(warning(&["data.kind=synthetic"]), "");
    assert_eq!(warning(&["data.kind=tokens"]), "");
    // Another file for the same tokens is the same tokenizer.
    let json = Tokenizer::Bytes.json().unwrap();
    fs::write(&own, &json).unwrap();
    fs::write(&other, [&json[..], b"\n"].concat()).unwrap();
    let named = format!("data.tokenizer={}", other.display());
    for set in ["data.kind=text", "data.tokenizer=bytes", &named] {
        assert_eq!(warning(&[set]), "", "{set}");
    }
    let swapped = String::from_utf8(json).unwrap().replace("\"a\":", "\"aa\":").replace("\"b\":", "\"a\":");
    fs::write(&other, swapped.replace("\"aa\":", "\"b\":")).unwrap();
    for set in ["data.kind=text", "data.kind=chat"] {
        let text = warning(&[&named, set]);
        assert!(text.contains("is not the tokenizer of the model, "), "{text}");
        assert!(text.contains("model/tokenizer.json, with 256: the model has learnt other"), "{text}");
    }
}
