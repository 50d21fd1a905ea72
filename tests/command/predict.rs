//! Tests of `plimsoll bench predict`.

use std::path::Path;

use super::{plimsoll, text};

#[test]
fn steps_of_tiny_models_are_measured_on_a_cpu() {
    let bench = |arguments: &[&str]| {
        let always = ["bench", "predict", "--device", "cpu", "--steps", "1"];
        plimsoll(Path::new(".")).args(always).args(arguments).output().unwrap()
    };
    let output = bench(&["--json", "--most", "2"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let lines: Vec<serde_json::Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    for line in &lines[..2] {
        assert!(line["measured_step_seconds"].as_f64().unwrap() > 0.0, "{line}");
        assert!(line["predicted_step_seconds"].is_null(), "{line}");
    }
    assert!(lines[2]["configurations"] == 2 && lines[2]["median_error"].is_null(), "{}", lines[2]);
    // With a GPU's description there are errors, though meaningless ones here.
    let output = bench(&["--most", "3", "--description", "h200"]);
    assert!(text(&output.stdout).contains("3 configurations: median error"), "{output:?}");
    for wrong in [
        &["--description", "h201"][..],
        &["--description", "none.toml"],
        &["--device", "gpu"],
        &["--device", "cpu", "--random", "2"],
        &["--device", "cpu", "--probe"],
        &["--probe", "--measured", "steps.jsonl"],
        &["--seed", "2"],
        &["--with", "model.kind=mlp"],
    ] {
        let output = plimsoll(Path::new(".")).args(["bench", "predict"]).args(wrong).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {output:?}");
    }
}
