//! Tests of paths in files and on the command line, tokenizers of folders and shards, and names on a hub.

use super::*;
use data::Tokenizer;
use std::fs;

/// Creates a model folder with a tokenizer, and folders of shards with and without one.
fn workplace() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for folder in ["model", "shards", "built-in", "bare"] {
        fs::create_dir(directory.path().join(folder)).unwrap();
        fs::write(directory.path().join(folder).join("train_0.bin"), [0; 64]).unwrap();
    }
    for folder in ["model", "shards"] {
        let json = Tokenizer::Bytes.json().unwrap();
        fs::write(directory.path().join(folder).join("tokenizer.json"), json).unwrap();
    }
    fs::write(directory.path().join("built-in/tokens.json"), r#"{"tokenizer": "gpt2"}"#).unwrap();
    directory
}

fn parse_in(directory: &Path, text: &str, overrides: &[&str]) -> RunConfig {
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    families();
    RunConfig::parse(text, "run.toml", directory, &overrides).unwrap()
}

#[test]
fn a_folder_as_tokenizer_is_the_file_in_it() {
    let directory = workplace();
    let config = parse_in(directory.path(), &format!("{LEAST}tokenizer = \"model\"\n"), &[]);
    let file = directory.path().join("model/tokenizer.json").display().to_string();
    assert_eq!(config.data.tokenizer, file);
    assert_eq!(parse_in(directory.path(), &format!("{LEAST}tokenizer = {file:?}\n"), &[]), config);
    let missing = refusal(&format!("{LEAST}tokenizer = \"meta-llama/Llama-3.2-1B\"\n"), &[]);
    assert!(
        missing
            .starts_with("quick.toml:3: data.tokenizer: there is no file /base/meta-llama/Llama-3.2-1B; if")
            && missing.contains("`hf download meta-llama/Llama-3.2-1B --local-dir Llama-3.2-1B`"),
        "{missing}"
    );
}

#[test]
fn shards_have_the_tokenizer_beside_them() {
    let directory = workplace();
    let named = |paths: &str, more: &[&str]| {
        let text = format!("[model]\nvocabulary = 50304\n[data]\nkind = \"tokens\"\n{paths}\n");
        let config = parse_in(directory.path(), &text, more);
        assert_eq!(config.with(&[]).unwrap(), config);
        config.tokenizer.name().to_owned()
    };
    let file = directory.path().join("shards/tokenizer.json").display().to_string();
    for (paths, expected) in [
        ("paths = [\"shards/*.bin\"]", file.as_str()),
        ("mixture = [{paths = [\"shards/train_0.bin\"]}]", &file),
        ("paths = [\"built-in/*.bin\"]", "gpt2"),
        ("paths = [\"bare/*.bin\"]", "none"),
        ("paths = [\"missing/*.bin\"]", "none"),
    ] {
        assert_eq!(named(paths, &[]), expected, "{paths}");
        assert_eq!(named(paths, &["data.tokenizer=bytes"]), "bytes", "{paths}");
    }
}

/// A run that began before its shards had a tokenizer can continue with one.
#[test]
fn tokens_may_get_a_tokenizer_later() {
    let directory = workplace();
    let text = "[model]\nvocabulary = 50304\n[data]\nkind = \"tokens\"\npaths = [\"shards/*.bin\"]\n";
    let [bare, named, other] = ["data.tokenizer=none", "train.steps=300", "data.tokenizer=gpt2"]
        .map(|set| parse_in(directory.path(), text, &[set]));
    let allowed = |here: &RunConfig, there: &RunConfig| {
        let changes = here.changes_since(&there.identity());
        changes.iter().map(|change| (change.key.clone(), change.allowed)).collect::<Vec<_>>()
    };
    assert_eq!(allowed(&named, &bare), [("data.tokenizer".to_owned(), true)]);
    assert!(named.model_changes_since(&bare.identity()).is_empty());
    assert_eq!(allowed(&other, &named), [("data.tokenizer".to_owned(), false)]);
    assert_eq!(allowed(&bare, &named), [("data.tokenizer".to_owned(), false)]);
}

#[test]
fn paths_of_the_command_line_are_relative_to_the_current_directory() {
    let here = std::env::current_dir().unwrap();
    let base = Path::new("/base");
    let text = "[data]\npaths = [\"a.txt\", \"[b]*.txt\"]\nvalidation_paths = [\"c.txt\"]\n";
    let of_file = parse_in(base, text, &[]);
    assert_eq!((of_file.data.base.as_path(), of_file.data.paths[0].as_str()), (base, "a.txt"));
    // What the file names keeps its directory.
    let named = parse_in(base, text, &["data.validation_paths=['d.txt']"]);
    assert_eq!(named.data.base, here);
    assert_eq!(named.data.paths, ["/base/a.txt", "/base/[b]*.txt"]);
    assert_eq!(named.data.validation_paths, ["d.txt"]);
    let named = parse_in(Path::new("/a[b]"), text, &["data.validation_paths=['d.txt']"]);
    assert_eq!(named.data.paths, ["/a[b]/a.txt", "/a[[]b[]]/[b]*.txt"]);
    let both = parse_in(base, text, &["data.paths=['d.txt']", "data.validation_paths=[]"]);
    assert_eq!((both.data.base, both.data.paths), (here.clone(), vec!["d.txt".to_owned()]));
    // A directory on the command line is that of all files.
    let elsewhere = parse_in(base, text, &["data.paths=['d.txt']", "data.base=there"]);
    assert_eq!(elsewhere.data.base, here.join("there"));
    assert_eq!(
        (&elsewhere.data.paths[0], &elsewhere.data.validation_paths[0]),
        (&"d.txt".into(), &"c.txt".into())
    );
    let mixed = "[data]\nmixture = [{paths = [\"a.txt\"]}]\n";
    let mixed = parse_in(base, mixed, &["data.validation_paths=['d.txt']"]);
    assert_eq!(mixed.data.mixture[0].paths, ["/base/a.txt"]);
    let timed = parse_in(base, text, &["parallel.profile=times.toml"]);
    assert_eq!(timed.parallel.profile, Some(here.join("times.toml")));
    let refused = RunConfig::parse(text, "run.toml", base, &["model.from=folder".to_owned()]);
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains(&here.join("folder/config.json").display().to_string()), "{refused}");
}

#[test]
fn a_name_on_a_hub_is_refused_with_the_way_to_download_it() {
    for (name, owner, model) in
        [("meta-llama/Llama-3.2-1B", "meta-llama", "Llama-3.2-1B"), ("gpt2", "openai-community", "gpt2")]
    {
        for text in [format!("[model]\nfrom = {name:?}\n"), format!("{LEAST}[lora]\nfrom = {name:?}\n")] {
            let refused = refusal(&text, &[]);
            let command = format!("`hf download {owner}/{model} --local-dir {model}`");
            assert!(refused.contains(&command) && refused.contains(".json: "), "{refused}");
        }
    }
    let refused = refusal("[model]\nfrom = \"../models/Llama-3.2-1B\"\n", &[]);
    assert!(!refused.contains("hf download"), "{refused}");
}
