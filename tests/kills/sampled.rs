//! Tests of sampling text from a run on the command line.

use super::*;

#[test]
fn text_is_sampled_from_a_run() {
    let workplace = Workplace::new();
    let set = ["--set", "train.steps=6", "--set", "checkpoint.every=3"];
    succeeded(&workplace.run(&[&["train", "run.toml", "--run-dir", "out"], &set[..]].concat()));
    let sample = |more: &[&str]| workplace.run(&[&["sample", "out"], more].concat());
    let message = |more: &[&str]| {
        let output = sample(more);
        succeeded(&output);
        output.stdout
    };
    let prompt = ["--prompt", "The load é", "--tokens", "40"];
    let first = message(&prompt);
    let printed = text(&first);
    assert!(printed.starts_with("The load é") && printed.ends_with('\n'), "{printed}");
    assert!(first.len() > "The load é".len() + 30);
    assert_eq!(first, message(&prompt), "the same every time");
    assert_ne!(first, message(&[&prompt[..], &["--seed", "2"]].concat()));
    assert_eq!(
        message(&[&prompt[..], &["--temperature", "0"]].concat()),
        message(&[&prompt[..], &["--temperature", "0", "--seed", "2"]].concat())
    );
    assert_eq!(text(&message(&["--prompt", "x", "--tokens", "0"])), "x\n");

    let refused = |arguments: &[&str], expected: &str| {
        let output = workplace.run(arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(expected) && output.stdout.is_empty(), "{arguments:?}: {error}");
    };
    refused(&["sample", "out", "--prompt", ""], "--prompt");
    refused(&["sample", "out", "--temperature=-1"], "--temperature -1");
    refused(&["sample", "missing"], "missing: there is no such run, checkpoint or folder");
    let numbers = ["--set", "data.kind=synthetic", "--set", "model.kind=mlp"];
    succeeded(&workplace.run(&[&["train", "run.toml", "--run-dir", "mlp"], &set[..], &numbers[..]].concat()));
    refused(&["sample", "mlp"], "mlp: it trained no model of text");
    succeeded(&workplace.run(&["train", "run.toml", "--run-dir", "kept", "--set", "checkpoint.every=0"]));
    succeeded(&workplace.run(&["sample", "kept", "--step", "100"]));
    refused(
        &["sample", "kept", "--step", "50"],
        "kept: it holds no checkpoint of step 50; there is one of step 100",
    );
    let nothing = ["--set", "checkpoint.every=0", "--set", "checkpoint.minutes=0"];
    succeeded(&workplace.run(&[&["train", "run.toml", "--run-dir", "bare"], &nothing[..]].concat()));
    refused(&["sample", "bare"], "bare: it holds no checkpoint; set checkpoint.every");
}
