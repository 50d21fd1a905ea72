//! Comparisons with Python's numpy and tokenizers packages. Each is skipped if the package is not installed.

use data::Tokenizer;
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;
use tokenize::{Format, HeldOut, Job, tokenize, train_tokenizer};

/// Runs `script` in `directory`. Returns false, with a message, if Python lacks `module`.
fn python(module: &str, directory: &Path, script: &str) -> bool {
    let python = std::env::var("PLIMSOLL_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has = Command::new(&python).args(["-c", &format!("import {module}")]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        system::skipped::report(system::skipped::Need::Python(module), &format!("{python} lacks it"));
        return false;
    }
    let ran = Command::new(&python).args(["-c", script]).current_dir(directory).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    true
}

fn text() -> String {
    include_str!("python.rs").repeat(20)
}

/// Shards equal those written with numpy by short versions of nanoGPT's `prepare.py` and llm.c's
/// `data_common.py`.
#[test]
fn shards_equal_those_written_by_numpy() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.txt");
    fs::write(&path, text()).unwrap();
    let job = |name: &str, format| {
        let job = Job::new(vec![path.clone()], Tokenizer::Gpt2, directory.path().join(name)).unwrap();
        tokenize(&Job { format, held_out: HeldOut::Tokens(1000), ..job }).unwrap();
    };
    job("llmc", Format::LlmC);
    job("nano", Format::NanoGpt);
    let tokens = Tokenizer::Gpt2.encode(&text()).unwrap();
    fs::write(directory.path().join("tokens.json"), serde_json::to_string(&tokens).unwrap()).unwrap();
    let script = r#"
import json, numpy as np
tokens = json.load(open("tokens.json"))
np.array(tokens[:1000], dtype=np.uint16).tofile("nano_val")
np.array(tokens[1000:], dtype=np.uint16).tofile("nano_train")
def write(name, tokens):
    header = np.zeros(256, dtype=np.int32)
    header[0], header[1], header[2] = 20240520, 1, len(tokens)
    with open(name, "wb") as f:
        f.write(header.tobytes())
        f.write(np.array(tokens, dtype=np.uint16).tobytes())
tokens = [50256] + tokens
write("llmc_val", tokens[:1000])
write("llmc_train", tokens[1000:])
"#;
    if python("numpy", directory.path(), script) {
        let pairs = [
            ("nano/train.bin", "nano_train"),
            ("nano/val.bin", "nano_val"),
            ("llmc/train_000000.bin", "llmc_train"),
            ("llmc/val_000000.bin", "llmc_val"),
        ];
        for (ours, theirs) in pairs {
            let read = |name: &str| fs::read(directory.path().join(name)).unwrap();
            assert!(read(ours) == read(theirs), "{ours}");
        }
    }
}

#[test]
fn tokens_equal_those_of_the_tokenizers_package() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.txt");
    fs::write(&path, text()).unwrap();
    let file = directory.path().join("tokenizer.json");
    train_tokenizer(vec![path], 500, "text", &file).unwrap();
    let script = r#"
import json, tokenizers
tokenizer = tokenizers.Tokenizer.from_file("tokenizer.json")
json.dump(tokenizer.encode_batch([open("a.txt").read()])[0].ids, open("theirs.json", "w"))
"#;
    if python("tokenizers", directory.path(), script) {
        let theirs: Vec<u32> =
            serde_json::from_slice(&fs::read(directory.path().join("theirs.json")).unwrap()).unwrap();
        let ours = Tokenizer::from_name(file.to_str().unwrap()).unwrap().encode(&text()).unwrap();
        assert!(ours == theirs);
    }
}
