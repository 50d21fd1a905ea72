//! Tests of commands on trained models: checkpoints by name, paths on the command line, messages on standard
//! input.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

use super::{plimsoll, text, workplace};
use crate::common::root;

pub(super) fn run(directory: &Path, arguments: &[&str]) -> Output {
    plimsoll(directory).args(arguments).output().unwrap()
}

pub(super) fn succeeds(directory: &Path, arguments: &[&str]) -> String {
    let output = run(directory, arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

pub(super) fn is_refused(directory: &Path, arguments: &[&str], expected: &str) {
    let output = run(directory, arguments);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
    assert!(message.contains(expected), "{arguments:?}: {message}");
}

#[test]
fn the_best_checkpoint_is_a_step_by_name() {
    let workplace = workplace();
    let train = |run_dir: &str, more: &[&str]| {
        let sets = ["--set", "train.validate_every=2", "--set", "checkpoint.every=2"];
        let arguments = [&["train", "run.toml", "--run-dir", run_dir], &sets[..], more].concat();
        succeeds(workplace.path(), &arguments)
    };
    train("kept", &["--set", "checkpoint.keep_best=true"]);
    train("other", &[]);
    let printed = succeeds(workplace.path(), &["eval", "kept", "--step", "best", "--json"]);
    let best = fs::read_link(workplace.path().join("kept/checkpoints/best")).unwrap();
    let step = best.to_str().unwrap().trim_start_matches("step-").trim_start_matches('0').to_owned();
    assert_eq!(printed, succeeds(workplace.path(), &["eval", "kept", "--step", &step, "--json"]));
    succeeds(workplace.path(), &["sample", "kept", "--step", "best", "--tokens", "4"]);
    succeeds(workplace.path(), &["export", "kept", "--step", "best", "-o", "folder"]);
    let from = ["train", "run.toml", "--from", "kept", "--step", "best", "--run-dir", "tuned"];
    succeeds(workplace.path(), &from);
    is_refused(
        workplace.path(),
        &["eval", "other", "--step", "best"],
        "other: it keeps no best checkpoint: train",
    );
    is_refused(workplace.path(), &["eval", "kept", "--step", "worst"], "it is a step's number, or best");
    // The directory contains a run, and the message explains how to resume it.
    is_refused(workplace.path(), &["train", "run.toml", "--run-dir", "kept"], "): --resume continues it");
}

#[test]
fn paths_of_the_command_line_are_relative_to_the_current_directory() {
    let workplace = workplace();
    let inner = workplace.path().join("inner");
    fs::create_dir(&inner).unwrap();
    fs::rename(workplace.path().join("corpus.txt"), inner.join("here.txt")).unwrap();
    let paths = "data.paths=['here.txt']";
    is_refused(&inner, &["plan", "../run.toml", "--device", "cpu"], "corpus.txt");
    is_refused(workplace.path(), &["plan", "run.toml", "--device", "cpu", "--set", paths], "here.txt");
    succeeds(&inner, &["train", "../run.toml", "--device", "cpu", "--set", paths, "--run-dir", "../out"]);
    // The run resumes from any directory, also with a path that is specified again.
    succeeds(workplace.path(), &["eval", "out"]);
    succeeds(&inner, &["eval", "../out", "--set", paths]);
    succeeds(workplace.path(), &["eval", "out", "--set", "data.paths=['inner/*.txt']"]);
    // A text shorter than a sequence is one sequence.
    std::fs::write(workplace.path().join("short.txt"), "abc").unwrap();
    succeeds(workplace.path(), &["eval", "out", "--data", "short.txt"]);
}

#[test]
fn standard_input_has_the_messages_of_a_conversation() {
    let directory = tempfile::tempdir().unwrap();
    let recipe = root().join("launch/recipes/chat/chat.toml").display().to_string();
    let sets = ["--set", "train.steps=1", "--set", "checkpoint.every=1"];
    succeeds(
        directory.path(),
        &[&["train", &recipe, "--device", "cpu", "--run-dir", "chat"], &sets[..]].concat(),
    );
    let talk = |input: &str, more: &[&str]| {
        let arguments = [&["sample", "chat", "--chat", "--tokens", "3", "--device", "cpu"], more].concat();
        let mut command = plimsoll(directory.path());
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let both = talk("shout keel\n\nshout wind\n", &["--system", "S"]);
    let printed = text(&both.stdout);
    assert_eq!(both.status.code(), Some(0), "{}", text(&both.stderr));
    assert!(printed.starts_with("shout keel\n") && printed.contains("\nshout wind\n"), "{printed}");
    let json = talk("shout keel\nshout wind", &["--json", "--system", "S"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((json["texts"].as_array().unwrap().len(), &json["texts"][1]["turn"]), (2, &1.into()));
    let none = talk("\n", &[]);
    assert_eq!(none.status.code(), Some(2));
    assert!(text(&none.stderr).contains("--chat: it needs a message: --prompt"), "{}", text(&none.stderr));
    is_refused(directory.path(), &["sample", "chat", "--system", "S"], "--chat");
}
