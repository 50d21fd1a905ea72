//! Tests of low-rank adapters through whole runs: small checkpoints, folders in PEFT's format, and merging.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::common;
use crate::common::python::python_with;
use crate::common::runs::{config, on_cpu, train_in};
use crate::common::{golden, root};
use inference::{EvaluateOptions, ExportOptions, SampleOptions};
use run::{RunOptions, Startup, TrainReport};
use safetensors::SafeTensors;
use telemetry::Statistic;
use worker::DeviceChoice;

/// Recorded models: one with transposed linear layers, and one with packed layers and grouped heads.
const MODELS: [&str; 2] = ["gpt2", "llama"];
/// Recorded models of further families: tied embeddings with norms after branches, fused tensors, norms over
/// all heads, biases, dense layers with experts and shared experts, and latents.
const FAMILIES: [&str; 6] = [
    "families/gemma2",
    "families/phi3",
    "families/olmo2",
    "families/granite",
    "families/glm4-moe",
    "families/deepseek",
];
/// Models whose runs are also resumed.
const RESUMED: [&str; 2] = ["gpt2", "families/glm4-moe"];
const LORA: [&str; 2] = ["lora.rank=4", "lora.alpha=16"];

fn folder(name: &str) -> PathBuf {
    if name.contains('/') { golden(name) } else { golden("models").join(name) }
}

/// Returns a configuration of ten steps on all sequences of a recorded model, with a high learning rate.
fn ten_steps(name: &str) -> String {
    let from = folder(name);
    let tokens = folder(name).join("tokens.bin");
    let text = fs::read_to_string(root().join("tests/golden/adapters.toml")).unwrap();
    text.replace("FOLDER", from.to_str().unwrap()).replace("TOKENS", tokens.to_str().unwrap())
}

fn train(name: &str, run_dir: &Path, overrides: &[&str]) -> TrainReport {
    train_in(run_dir, config(&ten_steps(name), overrides), DeviceChoice::Cpu).unwrap()
}

/// Returns a model's mean loss on all of its recorded tokens.
fn loss(name: &str, model: &Path, is_run: bool) -> f64 {
    let tokens = folder(name).join("tokens.bin").display().to_string();
    let options = EvaluateOptions {
        model: model.to_owned(),
        data: if is_run { Vec::new() } else { vec![tokens] },
        context: (!is_run).then_some(96),
        device: DeviceChoice::Cpu,
        ..Default::default()
    };
    inference::evaluate(Startup::alone(), &options).unwrap().unwrap().loss
}

/// Returns the greedily sampled tokens after `prompt`.
fn sampled(model: PathBuf, prompt: Vec<u32>, tokens: usize) -> Vec<u32> {
    let options = SampleOptions {
        model,
        prompt_tokens: vec![prompt],
        tokens,
        temperature: 0.0,
        device: DeviceChoice::Cpu,
        ..SampleOptions::default()
    };
    let sampled = inference::sample(Startup::alone(), &options, Arc::new(|_| Ok(())));
    sampled.unwrap().unwrap().texts[0].tokens.clone()
}

fn export(model: &Path, output: PathBuf, merge: bool) -> PathBuf {
    let options = ExportOptions { model: model.to_owned(), output, merge, ..Default::default() };
    inference::export(&options).unwrap();
    options.output
}

fn names(file: &Path) -> BTreeSet<String> {
    let bytes = fs::read(file).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    file.names().into_iter().map(str::to_owned).collect()
}

fn weights(folder: &Path) -> Vec<u8> {
    fs::read(folder.join("model.safetensors")).unwrap()
}

fn module_of(tensor: &str) -> &str {
    tensor.rsplit_once('.').unwrap().0
}

fn assert_near(actual: f64, expected: f64, what: &str) {
    assert!(
        (actual - expected).abs() <= 1e-5 * expected.abs(),
        "{what}: {actual}, and {expected} is expected"
    );
}

#[test]
fn adapters_are_saved_alone_loaded_and_merged() {
    for name in MODELS.into_iter().chain(FAMILIES) {
        let directory = tempfile::tempdir().unwrap();
        let at = |part: &str| directory.path().join(part);
        let report = train(name, &at("run"), &LORA);
        let losses = &report.summary.losses;
        assert!(losses[9] < 0.99 * losses[0], "{name}: {losses:?}");
        // A checkpoint contains the adapters, their optimizer state, and only those model tensors that no
        // optimizer updates.
        let checkpoint = checkpoint::newest(&at("run")).unwrap().unwrap();
        let saved = names(&checkpoint.path().join("state.safetensors"));
        let is_saved = |name: &String| {
            name.contains(".lora_") || name == "run.losses" || name.ends_with(".router.correction")
        };
        assert!(saved.iter().all(is_saved), "{saved:?}");
        let trained = loss(name, &at("run"), true);
        assert!(trained < f64::from(losses[9]), "{name}");

        let merged = export(&at("run"), at("merged"), true);
        assert_near(loss(name, &merged, false), trained, "merged");
        assert_eq!(names(&merged.join("model.safetensors")), names(&folder(name).join("model.safetensors")));

        // The folder of adapters states rank, scale and layers; the first loss is the loss of its weights.
        let adapters = export(&at("run"), at("adapters"), false);
        assert_near(loss(name, &adapters, false), trained, "a folder of adapters");
        let again = export(&adapters, at("merged again"), true);
        assert!(weights(&again) == weights(&merged), "{name}");
        let again = export(&adapters, at("adapters again"), false);
        assert!(
            fs::read(again.join("adapter_model.safetensors")).unwrap()
                == fs::read(adapters.join("adapter_model.safetensors")).unwrap()
        );
        let from = format!("lora.from={}", adapters.display());
        let again = train(name, &at("again"), &[&from, "train.steps=1"]);
        assert_near(f64::from(again.summary.losses[0]), trained, "from adapters");
        if !RESUMED.contains(&name) {
            continue;
        }
        // A run resumes on another grid, with the model read from its folder.
        let from = format!("model.from={}", folder(name).display());
        let resumed = |steps: &str, grid: &str| {
            let config = config(&ten_steps(name), &[&LORA[..], &[&from, steps, grid]].concat());
            let options = RunOptions { resume: true, ..on_cpu(&at("parts")) };
            run::train(config, options).unwrap()
        };
        train(name, &at("parts"), &[&LORA[..], &["train.steps=4"]].concat());
        let parts = resumed("train.steps=10", "parallel.data=2");
        assert_eq!(parts.summary.weights_sha256, report.summary.weights_sha256, "{name}");
    }
}

/// Checks that adapters in tensor lanes equal adapters of whole layers up to rounding, and are exported to
/// the same folders.
#[test]
fn adapters_of_lanes_are_those_of_whole_layers() {
    for name in MODELS.into_iter().chain(["families/mixtral", "families/deepseek"]) {
        let directory = tempfile::tempdir().unwrap();
        let at = |part: &str| directory.path().join(part);
        let sets = [&LORA[..], &["train.steps=4"]].concat();
        let whole = train(name, &at("whole"), &sets).summary.losses;
        let lanes = train(name, &at("run"), &[&sets[..], &["parallel.tensor_lanes=2"]].concat());
        for (own, of_whole) in lanes.summary.losses.iter().zip(&whole) {
            assert_near(f64::from(*own), f64::from(*of_whole), name);
        }
        let trained = loss(name, &at("run"), true);
        let merged = export(&at("run"), at("merged"), true);
        assert_near(loss(name, &merged, false), trained, "merged");
        let texts = [at("run"), merged].map(|model| sampled(model, vec![7, 3, 11], 12));
        assert_eq!(texts[0], texts[1], "{name}");
        let adapters = export(&at("run"), at("adapters"), false);
        let from = format!("lora.from={}", adapters.display());
        let again = train(name, &at("again"), &[&from, "train.steps=1", "parallel.tensor=2"]);
        assert_near(f64::from(again.summary.losses[0]), trained, "from adapters");
    }
}

/// Checks that models with experts, latents and fused experts, also in lanes, merge quantized bases as they
/// computed with them.
#[test]
fn bases_in_codes_are_merged_as_they_computed() {
    let lanes = "parallel.tensor_lanes=2";
    let table: [(&str, &[&str]); 4] = [
        ("families/mixtral", &["lora.base=nf4"]),
        ("families/deepseek", &["lora.base=int4", lanes]),
        ("families/gpt-oss", &["lora.base=fp8", "lora.targets=['q_proj', 'v_proj']"]),
        ("llama", &["lora.base=nf4", lanes]),
    ];
    for (name, sets) in table {
        let directory = tempfile::tempdir().unwrap();
        let at = |part: &str| directory.path().join(part);
        let sets = [&LORA[..], &["train.steps=2"], sets].concat();
        let losses = train(name, &at("run"), &sets).summary.losses;
        let plain = train(name, &at("plain"), &[&LORA[..], &["train.steps=1"]].concat()).summary.losses;
        assert!(
            losses[0] != plain[0] && (losses[0] - plain[0]).abs() < 5e-3 * plain[0],
            "{name}: {losses:?}"
        );
        let trained = loss(name, &at("run"), true);
        let merged = export(&at("run"), at("merged"), true);
        assert_near(loss(name, &merged, false), trained, "merged");
    }
}

/// Checks that frozen matrices kept in the folder's element type give the same losses and merged weights as
/// f32 matrices, in fewer bytes: in f32, under autocast, with tensor lanes and with ZeRO 3.
#[test]
fn bases_in_the_type_of_their_folder_change_no_bit() {
    let table: [(&str, &[&str]); 4] = [
        ("families/granite", &[]),
        ("families/mixtral", &["parallel.tensor_lanes=2"]),
        ("families/deepseek", &["precision.compute=bf16", "precision.weights=f32"]),
        ("families/olmo2", &["parallel.data=2", "parallel.zero_stage=3"]),
    ];
    for (name, sets) in table {
        let directory = tempfile::tempdir().unwrap();
        let run = |base: &str| {
            let run_dir = directory.path().join(base);
            let own = format!("lora.base={base}");
            let report = train(name, &run_dir, &[&LORA[..], &["train.steps=3", &own], sets].concat());
            assert!(report.unplanned.as_ref().is_some_and(Vec::is_empty), "{name} {base}");
            let losses: Vec<_> = report.summary.losses.iter().map(|loss| loss.to_bits()).collect();
            let merged = export(&run_dir, directory.path().join(format!("{base} merged")), true);
            let bytes = report.ranks[0].get(Statistic::AllocatedBytes);
            (losses, weights(&merged), bytes)
        };
        let [wide, own] = ["compute", "bf16"].map(run);
        assert_eq!(own.0, wide.0, "{name}");
        assert!(own.1 == wide.1, "{name}: merged");
        assert!(own.2 < wide.2, "{name}: {} of {} bytes", own.2, wide.2);
    }
}

#[test]
fn wrong_adapters_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let table: [(&[&str], &str); 11] = [
        (&["lora.rank=2", "lora.rank_pattern=q_proj"], "\"q_proj\" is no name of modules with a rank"),
        (&["lora.rank=2", "lora.rank_pattern=q_prj=4"], "\"q_prj\" names no linear layer of the model"),
        (
            &["lora.rank=2", "lora.rank_pattern=q_proj=4"],
            "model.layers.0.self_attn.q_proj and model.layers.0.self_attn.k_proj are rows of one matrix here",
        ),
        (&["lora.rank=2", "lora.train_also=['q_proj']"], "are one matrix here: name both or neither"),
        (
            &["lora.rank=2", "lora.train_also=['embd']"],
            "lora.train_also: \"embd\" names no module of the model",
        ),
        (
            &["lora.rank=2", "lora.targets=['q_prj']"],
            "\"q_prj\" names no linear layer of the model, such as q_proj",
        ),
        (&["lora.rank=2", "train.freeze=['*']"], "nothing is left to train"),
        (&["train.freeze=['model.norms.*']"], "\"model.norms.*\" matches no parameter, such as model.norm"),
        (&["lora.from=there", "lora.rank=2"], "adapter_config.json"),
        (
            &[
                "lora.rank=2",
                "lora.base=nf4",
                "model.from=",
                "model.kind=mlp",
                "model.sizes=[3, 300, 8]",
                "data.kind=synthetic",
            ],
            "lora.base: a matrix of 0.weight has 900 elements, and codes need multiples of 64",
        ),
        (&["lora.rank=2", "lora.targets=['lm_head']", "model.loss_pieces=2"], "model.loss_pieces = 2"),
    ];
    for (overrides, expected) in table {
        let overrides: Vec<_> = overrides.iter().map(|set| (*set).to_owned()).collect();
        vision::register().unwrap();
        let parsed = config::RunConfig::parse(&ten_steps("llama"), "test.toml", &root(), &overrides);
        let refused = parsed.map_err(|error| error.to_string()).and_then(|config| {
            let run_dir = Some(directory.path().join("run"));
            let options = RunOptions { run_dir, quiet: true, ..RunOptions::default() };
            run::train(config, options).map(drop).map_err(|error| error.to_string())
        });
        let text = refused.unwrap_err();
        assert!(text.contains(expected), "{text}");
    }
}

/// Checks that scales, ranks and whole modules are saved in checkpoints and folders, and merged as trained.
#[test]
fn settings_of_modules_are_those_of_folders() {
    let ranks =
        ["lora.scaling=rslora", "lora.rank_pattern=['*.1.*=2', 'c_proj=6']", "lora.b_learning_rate=4"];
    let table: [(&str, &[&str], &[&str]); 4] = [
        ("gpt2", &ranks, &[]),
        ("llama", &["lora.rank_pattern=['down_proj=2']", "lora.alpha_pattern=['o_proj=1', '*.1.*=3']"], &[]),
        ("gpt2", &["lora.train_also=['ln_f', 'h.1.mlp']"], &["ln_f", "h.1.mlp.c_fc", "h.1.mlp.c_proj"]),
        ("families/phi3", &["lora.train_also=['lm_head', 'model.norm']"], &["lm_head", "model.norm"]),
    ];
    for (name, sets, trained_also) in table {
        let directory = tempfile::tempdir().unwrap();
        let at = |part: &str| directory.path().join(part);
        train(name, &at("run"), &[&LORA[..], &["train.steps=4"], sets].concat());
        let trained = loss(name, &at("run"), true);
        let merged = export(&at("run"), at("merged"), true);
        assert_near(loss(name, &merged, false), trained, "merged");
        let adapters = export(&at("run"), at("adapters"), false);
        assert_near(loss(name, &adapters, false), trained, "a folder of adapters");
        let again = export(&adapters, at("merged again"), true);
        assert!(weights(&again) == weights(&merged), "{name}");
        let tensors = names(&adapters.join("adapter_model.safetensors"));
        let whole = tensors.iter().filter(|tensor| !tensor.contains(".lora_"));
        let is_saved = |tensor: &String| trained_also.iter().any(|end| module_of(tensor).ends_with(end));
        assert_eq!(whole.clone().count() > 0, !trained_also.is_empty(), "{name}");
        assert!(whole.into_iter().all(is_saved), "{tensors:?}");
        let from = format!("lora.from={}", adapters.display());
        let again = train(name, &at("again"), &[&from, "train.steps=1"]);
        assert_near(f64::from(again.summary.losses[0]), trained, "from adapters");
    }
}

/// Checks that the model of adapters is found by the path that they name, or by the command line.
#[test]
fn the_model_of_adapters_is_found_or_named() {
    let directory = tempfile::tempdir().unwrap();
    let at = |part: &str| directory.path().join(part);
    train("llama", &at("run"), &[&LORA[..], &["train.steps=1"]].concat());
    let adapters = export(&at("run"), at("adapters"), false);
    let config = fs::read_to_string(adapters.join("adapter_config.json")).unwrap();
    let evaluate = |named: &str, base: Option<PathBuf>| {
        let own = folder("llama").display().to_string();
        fs::write(adapters.join("adapter_config.json"), config.replace(&format!("{own:?}"), named)).unwrap();
        let options = EvaluateOptions {
            model: adapters.clone(),
            base,
            data: vec![folder("llama").join("tokens.bin").display().to_string()],
            context: Some(96),
            device: DeviceChoice::Cpu,
            ..Default::default()
        };
        inference::evaluate(Startup::alone(), &options).map(|evaluation| evaluation.unwrap().loss)
    };
    let refused = |named: &str, base: Option<PathBuf>| {
        let error = evaluate(named, base).unwrap_err();
        assert_eq!(error.exit_status(), 2, "{error}");
        error.to_string()
    };
    let own = evaluate(&format!("{:?}", folder("llama")), None).unwrap();
    assert_eq!(evaluate("null", Some(folder("llama"))).unwrap(), own);
    // A path relative to the adapters.
    std::os::unix::fs::symlink(folder("llama"), at("model")).unwrap();
    assert_eq!(evaluate("\"../model\"", None).unwrap(), own);
    let text = refused("\"meta-llama/Llama-3.2-1B\"", None);
    assert!(
        text.contains("--base DIR names") && text.contains("`hf download meta-llama/Llama-3.2-1B"),
        "{text}"
    );
    assert!(refused("null", None).contains("it names no model: --base DIR"));
    assert!(refused("null", Some(at("run"))).contains("it has no config.json"));
    fs::remove_file(adapters.join("adapter_model.safetensors")).unwrap();
    fs::write(adapters.join("adapter_model.bin"), "").unwrap();
    let text = refused("null", Some(folder("llama")));
    assert!(text.contains("it has adapter_model.bin, which is of Python's pickle: `python -c"), "{text}");
    let model = EvaluateOptions { model: folder("llama"), base: Some(at("x")), ..Default::default() };
    let text = inference::evaluate(Startup::alone(), &model).unwrap_err().to_string();
    assert!(text.contains("is no folder of adapters"), "{text}");
}

/// Checks that PEFT reads our adapters, computes like the merged model, and writes adapters that we read.
/// Skipped if Python lacks peft or transformers.
#[test]
fn peft_reads_and_writes_the_same_adapters() {
    let Some(python) = python_with(&["peft", "transformers"]) else { return };
    for name in MODELS {
        let directory = tempfile::tempdir().unwrap();
        let at = |part: &str| directory.path().join(part);
        train(name, &at("run"), &LORA);
        let (adapters, merged) =
            (export(&at("run"), at("adapters"), false), export(&at("run"), at("merged"), true));
        let script = root().join("tests/peft_round_trip.py");
        let arguments = [script, folder(name), adapters, merged, at("theirs")];
        let output = Command::new(&python).args(arguments).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        let results: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let loss_of_ours = results["loss"].as_f64().unwrap();
        assert_near(loss(name, &at("run"), true), loss_of_ours, "PEFT with our adapters");
        // The run samples the tokens that PEFT generates.
        let prompt: Vec<u32> = serde_json::from_value(results["prompt"].clone()).unwrap();
        let sampled = |model: PathBuf| serde_json::json!(sampled(model, prompt.clone(), 64));
        assert_eq!(sampled(at("run")), results["tokens"], "{name}");
        assert_eq!(sampled(at("merged")), results["tokens"], "{name}");
        let from = format!("lora.from={}", at("theirs").display());
        let theirs = train(name, &at("again"), &[&from, "train.steps=1"]);
        let expected = results["loss_of_theirs"].as_f64().unwrap();
        assert_near(f64::from(theirs.summary.losses[0]), expected, "PEFT's adapters");
    }
}

/// Checks that the planned copy for checkpoints excludes a frozen base.
#[test]
fn the_copy_for_checkpoints_is_planned_without_the_frozen_base() {
    for name in MODELS {
        let directory = tempfile::tempdir().unwrap();
        let at = |part: &str| directory.path().join(part);
        for (number, sets) in [&LORA[..], &[]].into_iter().enumerate() {
            let run = at(&format!("run{number}"));
            train(name, &run, &[sets, &["checkpoint.every=10"]].concat());
            let checkpoint = checkpoint::newest(&run).unwrap().unwrap();
            let bytes = fs::read(checkpoint.path().join("state.safetensors")).unwrap();
            let file = SafeTensors::deserialize(&bytes).unwrap();
            let kept = file.iter().filter(|(name, _)| *name != "run.losses");
            let saved: usize = kept.map(|(_, tensor)| tensor.data().len()).sum();

            fs::write(at("run.toml"), ten_steps(name)).unwrap();
            let mut command = Command::new(common::program());
            command.current_dir(directory.path()).args(["plan", "run.toml", "--json", "--device", "cpu"]);
            let sets = sets.iter().chain(&["checkpoint.every=10"]).flat_map(|set| ["--set", set]);
            let output = command.args(sets).output().unwrap();
            let plan: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            let parts = plan["fit"]["host"]["parts"].as_array().unwrap();
            let copy = parts.iter().find(|part| part["name"] == "the copy for checkpoints").unwrap();
            assert_eq!(copy["bytes"].as_u64(), Some(saved as u64), "{name}, {parts:?}");
        }
    }
}
