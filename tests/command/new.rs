//! Tests of `plimsoll new`: the file that it writes, its output, and its exit statuses.

use super::{plimsoll, text, workplace};
use crate::common;

/// Configuration of a model that fits on no small GPU.
const LARGE: &str = r#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "tie_word_embeddings": false}"#;

#[test]
fn a_new_configuration_is_written_once_and_trains() {
    let directory = workplace();
    let run = |arguments: &[&str]| plimsoll(directory.path()).args(arguments).output().unwrap();
    let new = ["new", "pretrain", "corpus.txt", "--device", "cpu"];
    let output = run(&new);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{printed}{}", text(&output.stderr));
    assert!(
        printed.contains("data.tokenizer = \"bytes\"") && printed.contains("planned memory"),
        "{printed}"
    );
    assert!(printed.ends_with("Next: plimsoll train pretrain.toml --device cpu\n"), "{printed}");

    let again = run(&new);
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again.stderr).contains("--force replaces it"), "{}", text(&again.stderr));
    assert_eq!(run(&[&new[..], &["--force"]].concat()).status.code(), Some(0));

    let sets =
        ["--set", "train.steps=2", "--set", "train.global_batch_size=4", "--set", "optim.warmup_steps=1"];
    let small = ["--set", "train.micro_batch_size=2", "--run-dir", "run"];
    let train = run(&[&["train", "pretrain.toml", "--device", "cpu"], &sets[..], &small].concat());
    assert_eq!(train.status.code(), Some(0), "{}", text(&train.stderr));

    let printed = run(&[&new[..], &["-o", "-"]].concat());
    let written = std::fs::read_to_string(directory.path().join("pretrain.toml")).unwrap();
    assert_eq!(text(&printed.stdout), written);
}

#[test]
fn a_run_that_fits_nowhere_writes_nothing() {
    let directory = workplace();
    std::fs::create_dir(directory.path().join("large")).unwrap();
    std::fs::write(directory.path().join("large/config.json"), LARGE).unwrap();
    let new = |more: &[&str]| {
        let arguments = [&["new", "finetune", "large", "corpus.txt", "--full"], more].concat();
        plimsoll(directory.path()).args(arguments).output().unwrap()
    };
    let output = new(&["--device", "t4"]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("the nearest configuration") && error.contains("lacks"), "{error}");
    assert!(!directory.path().join("finetune.toml").exists());
    assert_eq!(new(&["--device", "keel"]).status.code(), Some(2));
}

#[test]
fn another_trainers_file_is_converted_and_what_is_left_is_named() {
    let directory = workplace();
    let file = common::root().join("crates/recipes/tests/files/axolotl-lora.yaml");
    let new = |more: &[&str]| {
        plimsoll(directory.path()).args(["new", "--from"]).arg(&file).args(more).output().unwrap()
    };
    let output = new(&[]);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for part in ["arguments of axolotl", "lora.rank = 32", "wandb_project = keel has no equivalent"] {
        assert!(printed.contains(part), "{printed}");
    }
    assert!(directory.path().join("axolotl-lora.toml").exists());
    let as_another = new(&["--format", "trl", "-o", "other.toml"]);
    assert!(text(&as_another.stdout).contains("arguments of TRL, as --format says"));
    assert_eq!(new(&["--format", "keel"]).status.code(), Some(2));
}
