//! Tests of a program with its own model family, started as by its user.
#![allow(clippy::unwrap_used, reason = "in tests, a panic is the report of a failure")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const CONFIG: &str = r#"
[model]
kind = "parallel-block"
layers = 4
[data]
paths = ["tests/outside/*.rs", "tests/outside/tests/*.rs"]
[train]
steps = 6
micro_batch_size = 2
global_batch_size = 8
[optim]
learning_rate = 1e-2
warmup_steps = 2
[checkpoint]
every = 2
wait = true
keep = 3
[parallel]
lanes = 4
"#;

const GRIDS: [&[&str]; 6] = [
    &[],
    &["parallel.data=2"],
    &["parallel.pipeline=2"],
    &["parallel.data=2", "parallel.pipeline=2", "parallel.schedule=zero-bubble"],
    &["parallel.data=2", "parallel.zero_stage=1"],
    &["parallel.pipeline=2", "memory.recompute=block"],
];

/// Grids with tensor and context parallelism, which the family supports through its table of placements
/// alone.
const SHARED: [&[&str]; 7] = [
    &[],
    &["parallel.tensor=2"],
    &["parallel.context=2"],
    &["parallel.data=2", "parallel.zero_stage=3"],
    &["parallel.tensor=2", "parallel.context=2"],
    &["parallel.tensor=2", "parallel.pipeline=2", "memory.recompute=block"],
    &[
        "parallel.data=2",
        "parallel.pipeline=2",
        "parallel.tensor=2",
        "parallel.context=2",
        "parallel.zero_stage=3",
    ],
];

fn outside(arguments: &[&str], sets: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outside"));
    command.args(arguments).env("PLIMSOLL_LOG", "error");
    for set in sets {
        command.args(["--set", set]);
    }
    command.output().unwrap()
}

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Writes the configuration. The data's paths are relative to the source tree.
fn configuration(directory: &Path) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let path = directory.join("run.toml");
    let base = format!("[data]\nbase = {:?}\n", root.display().to_string());
    std::fs::write(&path, CONFIG.replace("[data]\n", &base)).unwrap();
    path.display().to_string()
}

fn summary(run_dir: &str) -> Value {
    serde_json::from_slice(&std::fs::read(Path::new(run_dir).join("summary.json")).unwrap()).unwrap()
}

#[test]
fn every_grid_gives_the_planned_bytes_and_the_same_bits() {
    assert_equal_bits(&GRIDS, &[]);
}

#[test]
fn ranks_that_share_layers_and_sequences_give_the_same_bits() {
    assert_equal_bits(&SHARED, &["parallel.tensor_lanes=2", "parallel.context_lanes=4"]);
}

/// Asserts that every grid uses its planned bytes and has the weights of the first grid.
fn assert_equal_bits(grids: &[&[&str]], common: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let config = configuration(directory.path());
    let mut hashes = Vec::new();
    for (number, grid) in grids.iter().enumerate() {
        let grid = &[common, grid].concat();
        let run_dir = directory.path().join(number.to_string()).display().to_string();
        succeeded(&outside(&["train", &config, "--device", "cpu", "--run-dir", &run_dir], grid));
        let ran = summary(&run_dir);
        let planned: Value =
            serde_json::from_str(&succeeded(&outside(&["plan", &config, "--json", "--device", "cpu"], grid)))
                .unwrap();
        let figures = |of: &Value| -> Vec<Vec<Value>> {
            let keys = ["allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "peak_reserved_bytes"];
            let ranks = of["ranks"].as_array().unwrap().iter();
            ranks.map(|rank| keys.map(|key| rank[key].clone()).to_vec()).collect()
        };
        assert_eq!(figures(&ran), figures(&planned), "{grid:?}");
        let losses: Vec<f64> =
            ran["losses"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
        assert!(losses[5] < losses[0] - 0.5, "{grid:?}: {losses:?}");
        hashes.push(ran["weights_sha256"].clone());
    }
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
}

#[test]
fn it_resumes_samples_and_reports() {
    let directory = tempfile::tempdir().unwrap();
    let config = configuration(directory.path());
    let run_dir = directory.path().join("run").display().to_string();
    succeeded(&outside(&["train", &config, "--device", "cpu", "--run-dir", &run_dir], &[]));
    let whole = summary(&run_dir)["weights_sha256"].clone();
    let again = ["train", &config, "--device", "cpu", "--run-dir", &run_dir, "--resume", "--step", "4"];
    succeeded(&outside(&again, &["parallel.pipeline=2"]));
    assert_eq!(summary(&run_dir)["weights_sha256"], whole);
    assert!(!succeeded(&outside(&["sample", &run_dir, "--tokens", "8"], &[])).is_empty());
    assert!(succeeded(&outside(&["eval", &run_dir, "--json"], &[])).contains("perplexity"));
    assert!(succeeded(&outside(&["report", &run_dir], &[])).contains("report.html"));
    let refused = outside(&["plan", &config], &["model.heads=3"]);
    assert_eq!(refused.status.code(), Some(2));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("model.width = 32 is not a multiple of model.heads = 3"), "{text}");
    let refused = outside(&["export", &run_dir, "-o", &format!("{run_dir}/out")], &[]);
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn its_operator_computes_in_the_type_of_its_row() {
    const AUTOCAST: [&str; 3] = ["model.heads=1", "precision.compute=bf16", "precision.weights=f32"];
    let directory = tempfile::tempdir().unwrap();
    let config = configuration(directory.path());
    let plan = |sets: &[&str]| {
        let text = succeeded(&outside(&["plan", &config, "--precision", "--device", "cpu"], sets));
        let line = text.lines().find(|line| line.starts_with("branch_sum")).unwrap_or_default();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    // Name, calls, operands, arithmetic, results, gradients.
    assert_eq!(plan(&AUTOCAST)[2..], ["f32", "f32", "f32", "f32"]);
    assert_eq!(plan(&AUTOCAST[..2])[2..], ["as", "given", "f32", "bf16", "bf16"]);
    let hash = |name: &str, grid: &str| {
        let run_dir = directory.path().join(name).display().to_string();
        let sets = [&AUTOCAST[..], &[grid]].concat();
        succeeded(&outside(&["train", &config, "--device", "cpu", "--run-dir", &run_dir], &sets));
        summary(&run_dir)["weights_sha256"].clone()
    };
    assert_eq!(hash("one", "parallel.data=1"), hash("two", "parallel.pipeline=2"));
}
