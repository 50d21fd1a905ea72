//! Comparisons with transformers; reported as skipped without Python's torch and transformers.

use std::fs;
use std::process::Command;

use inference::{EvaluateOptions, ExportOptions};
use serde_json::Value;
use worker::DeviceChoice;

use super::{evaluate, near, ten_steps};
use crate::common::python::python_with;
use crate::common::root;
use crate::common::runs::{config, train_in};
use crate::families::{MODELS, folder};

/// Python script that strictly loads a folder and prints the loss of the recorded tokens. By default,
/// transformers' attention has no soft cap.
pub(crate) const LOAD: &str = r#"
import json, sys
import numpy, torch, transformers
folder, recorded = sys.argv[1:]
model, info = transformers.AutoModelForCausalLM.from_pretrained(
    folder, output_loading_info=True, torch_dtype=torch.float32, attn_implementation="eager")
assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
sizes = json.load(open(recorded + "/expected.json"))
tokens = torch.from_numpy(numpy.fromfile(recorded + "/tokens.bin", numpy.uint16, offset=1024).astype(numpy.int64))
rows, columns = sizes["sequences"], sizes["context"]
inputs, targets = (tokens[at:at + rows * columns].view(rows, columns) for at in (0, 1))
with torch.no_grad():
    logits = model(inputs).logits
print(torch.nn.functional.cross_entropy(logits.double().flatten(0, 1), targets.flatten()).item())
"#;

#[test]
fn transformers_load_an_exported_folder() {
    let Some(python) = python_with(&["torch", "transformers"]) else { return };
    for name in MODELS {
        let directory = tempfile::tempdir().unwrap();
        let run_dir = directory.path().join("run");
        train_in(&run_dir, config(&ten_steps(name), &[]), DeviceChoice::Cpu).unwrap();
        let of_run = evaluate(EvaluateOptions { model: run_dir.clone(), ..Default::default() }).unwrap();
        // With the folder's own configuration, and with a written one.
        let moved = directory.path().join("moved");
        fs::rename(&run_dir, &moved).unwrap();
        let text = fs::read_to_string(moved.join("config.toml")).unwrap();
        for (number, config) in
            [text.clone(), text.replace("/models/", "/gone/").replace("/families/", "/gone/")]
                .iter()
                .enumerate()
        {
            fs::write(moved.join("config.toml"), config).unwrap();
            let out = directory.path().join(format!("out-{number}"));
            let options = ExportOptions { model: moved.clone(), output: out.clone(), ..Default::default() };
            inference::export(&options).unwrap();
            let loaded = Command::new(&python).args(["-c", LOAD]).arg(&out).arg(folder(name)).output();
            let loaded = loaded.unwrap();
            assert!(loaded.status.success(), "{}", String::from_utf8_lossy(&loaded.stderr));
            let loss: f64 = String::from_utf8_lossy(&loaded.stdout).trim().parse().unwrap();
            assert!((loss - of_run.loss).abs() < 1e-5 * of_run.loss, "{name}: {loss} and {of_run}");
        }
    }
}

/// Checks that random models of every family, with sizes unlike the recorded ones, are read, computed and
/// written unchanged.
#[test]
fn random_models_of_transformers_go_in_and_out_unchanged() {
    let Some(python) = python_with(&["torch", "transformers"]) else { return };
    let directory = tempfile::tempdir().unwrap();
    let script = root().join("tests/hugging_face/sizes.py");
    let output = Command::new(&python).arg(script).arg(directory.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let message = String::from_utf8_lossy(&output.stdout).into_owned();
    let losses: Value = serde_json::from_str(message.lines().last().unwrap()).unwrap();
    let losses = losses.as_object().unwrap();
    assert!(losses.len() > 8);
    for (name, loss) in losses {
        let at = directory.path().join(name);
        let tokens = directory.path().join("tokens.bin").display().to_string();
        let options = EvaluateOptions {
            model: at.clone(),
            data: vec![tokens],
            context: Some(24),
            ..Default::default()
        };
        let evaluation = evaluate(options).unwrap();
        assert!(near(evaluation.loss, loss, 1e-5), "{name}: {evaluation}, and {loss} is expected");
        let out = directory.path().join(format!("{name}-out"));
        let options = ExportOptions { model: at.clone(), output: out.clone(), ..Default::default() };
        inference::export(&options).unwrap();
        for file in ["model.safetensors", "config.json"] {
            assert!(fs::read(at.join(file)).unwrap() == fs::read(out.join(file)).unwrap(), "{name}: {file}");
        }
    }
}
