//! Tests of comparing runs by the hashes of their tensors: runs are equal on every grid, and a single flipped
//! bit is found at its step, module and operator.

use std::path::Path;
use std::process::Command;

use crate::common::runs::{CHAT, GPT, LLAMA, MLP, config, on_cpu};
use crate::common::{program, root};
use run::{CompareOptions, Comparison, RerunOptions, RunOptions, TrainReport, compare};
use telemetry::hashes::{self, Section};
use tensor::Tensor;
use worker::{TensorHook, TensorSite};

fn train(directory: &Path, text: &str, sets: &[&str], tensor_hook: Option<TensorHook>) -> TrainReport {
    let options = RunOptions { tensor_hook, ..on_cpu(directory) };
    run::train(config(text, sets), options).unwrap()
}

fn compared(first: &Path, second: &Path) -> Comparison {
    compare([first, second], CompareOptions::default()).unwrap()
}

/// A tensor in which a hook flips a bit of the last element.
#[derive(Clone, Copy, Debug)]
struct Flip {
    step: u64,
    section: Section,
    micro_batch: Option<u64>,
    module: &'static str,
    operator: &'static str,
    name: &'static str,
    /// Index of the bit, from the lowest.
    bit: u32,
}

impl Flip {
    fn hook(self) -> TensorHook {
        TensorHook::new(move |site: &TensorSite<'_>, tensor: &Tensor| {
            let here = (site.step, site.section, site.micro_batch, site.module, site.operator, site.name);
            if here == (self.step, self.section, self.micro_batch, self.module, self.operator, self.name) {
                let mut values = tensor.to_vec::<f32>()?;
                let last = values.last_mut().ok_or("an empty tensor")?;
                *last = f32::from_bits(last.to_bits() ^ (1 << self.bit));
                tensor.set(&values)?;
            }
            Ok(())
        })
    }

    /// Asserts that `parting` is this tensor.
    fn is_found(self, parting: &telemetry::hashes::Parting) {
        let array = &parting.array;
        assert_eq!((parting.step, array.section), (self.step, self.section), "{parting}");
        assert_eq!((array.micro_batch, array.module.as_str()), (self.micro_batch, self.module), "{parting}");
        assert_eq!((array.operator.as_str(), array.array.as_str()), (self.operator, self.name), "{parting}");
        assert!(!parting.only_in_one);
    }
}

const fn activation(section: Section, step: u64, module: &'static str, operator: &'static str) -> Flip {
    let name = match section {
        Section::Forward => "output",
        _ => "gradient of input",
    };
    // Four micro-batches per step: the second of this step.
    Flip { step, section, micro_batch: Some(4 * (step - 1) + 1), module, operator, name, bit: 0 }
}

const fn state(section: Section, step: u64, module: &'static str, name: &'static str) -> Flip {
    Flip { step, section, micro_batch: None, module, operator: "", name, bit: 0 }
}

#[test]
fn runs_on_different_grids_compare_as_equal() {
    let directory = tempfile::tempdir().unwrap();
    let gpt = [
        &[][..],
        &["parallel.data=2"],
        &["parallel.data=2", "parallel.zero_stage=1"],
        &["parallel.pipeline=2", "memory.recompute=block"],
        &["parallel.data=2", "parallel.pipeline=2", "parallel.schedule=zero-bubble"],
        &["model.dropout=0.1"],
        &["model.dropout=0.1", "parallel.pipeline=2", "parallel.data=2"],
        &["parallel.data=3", "parallel.zero_stage=3"],
    ];
    let llama = [&[][..], &["parallel.pipeline=2", "parallel.schedule=interleaved"]];
    let mlp = [&[][..], &["parallel.data=4", "parallel.zero_stage=1"]];
    let pieces = [
        &["parallel.context_lanes=4"][..],
        &["parallel.context_lanes=4", "parallel.context=2"],
        &["parallel.context_lanes=4", "parallel.context=2", "parallel.data=2", "parallel.zero_stage=3"],
        &["parallel.context_lanes=4", "parallel.pipeline=2", "memory.recompute=block"],
    ];
    let lanes = [
        &["parallel.tensor_lanes=2"][..],
        &["parallel.tensor_lanes=2", "parallel.tensor=2"],
        &["parallel.tensor_lanes=2", "parallel.tensor=2", "parallel.data=2", "parallel.zero_stage=1"],
    ];
    let both = [
        &["parallel.tensor_lanes=2", "parallel.context_lanes=2"][..],
        &["parallel.tensor_lanes=2", "parallel.context_lanes=2", "parallel.tensor=2"],
    ];
    let tables: [(&str, &str, &[&[&str]]); 6] = [
        ("gpt", GPT, &gpt),
        ("llama", LLAMA, &llama),
        ("mlp", MLP, &mlp),
        ("pieces", LLAMA, &pieces),
        ("lanes", GPT, &lanes),
        ("both", LLAMA, &both),
    ];
    for (name, text, cases) in tables {
        let mut plain: Vec<(bool, std::path::PathBuf)> = Vec::new();
        for (index, case) in cases.iter().enumerate() {
            let (path, drops) =
                (directory.path().join(format!("{name}-{index}")), case.contains(&"model.dropout=0.1"));
            let sets = [case, &["train.steps=3", "telemetry.hashes=2"][..]].concat();
            train(&path, text, &sets, None);
            let Some((_, first)) = plain.iter().find(|(dropout, _)| *dropout == drops) else {
                plain.push((drops, path));
                continue;
            };
            let comparison = compared(first, &path);
            assert!(comparison.is_same(), "{name} {case:?}: {comparison}");
            let all = comparison.hashes.as_ref().unwrap();
            // Weights, moments and gradients, and tensors of four micro-batches.
            assert!(all.steps == 1 && all.arrays > 60, "{name} {case:?}: {all:?}");
            assert!(comparison.settings.iter().all(|setting| !setting.decides_bits), "{comparison}");
            if !case.is_empty() {
                let mut software = comparison.software.iter();
                assert!(software.any(|difference| difference.name == "grid"), "{comparison}");
            }
        }
    }
    // Another seed, for a model with dropout, is a different computation.
    let comparison = compared(&directory.path().join("gpt-0"), &directory.path().join("gpt-5"));
    let setting = &comparison.settings[0];
    assert!(!comparison.is_same() && setting.name == "model.dropout" && setting.decides_bits);
    assert!(comparison.to_string().contains("model.dropout: 0.0 and 0.1 (decides bits)"), "{comparison}");
}

/// Checks that tokenizer files and chat templates are compared by content: each run has its own copies.
#[test]
fn copies_of_files_are_compared_by_content() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let json = data::Tokenizer::Bytes.json().unwrap();
    std::fs::write(path("tokenizer.json"), &json).unwrap();
    std::fs::write(path("other.json"), [&json[..], b"\n"].concat()).unwrap();
    let template = std::fs::read_to_string(root().join("launch/recipes/chat/template.jinja")).unwrap();
    std::fs::write(path("other.jinja"), template.replace("</>", "</>\n")).unwrap();
    let run = |name: &str, tokenizer: &str, template: Option<&str>| {
        let tokenizer = format!("data.tokenizer={}", path(tokenizer).display());
        let template = template.map(|file| format!("data.chat_template={}", path(file).display()));
        let sets = [Some(tokenizer), template, Some("train.steps=1".to_owned())];
        let sets: Vec<&str> = sets.iter().flatten().map(String::as_str).collect();
        train(&path(name), CHAT, &sets, None);
    };
    run("a", "tokenizer.json", None);
    run("b", "tokenizer.json", None);
    run("c", "other.json", Some("other.jinja"));
    assert_eq!(compared(&path("a"), &path("b")).settings, []);
    let settings = compared(&path("a"), &path("c")).settings;
    let actual: Vec<_> = settings.iter().map(|setting| (&*setting.name, setting.decides_bits)).collect();
    assert_eq!(actual, [("data.chat_template", false), ("data.tokenizer", true)]);
}

#[test]
fn a_flipped_bit_is_found_where_it_was_flipped() {
    let directory = tempfile::tempdir().unwrap();
    let sets = ["train.steps=3", "telemetry.hashes=1"];
    let clean = directory.path().join("clean");
    train(&clean, GPT, &sets, None);
    let flips = [
        state(Section::Weights, 2, "h.1.attn_proj", "h.1.attn_proj.weight"),
        state(Section::OptimizerState, 3, "h.0.ln_2", "adamw.second.h.0.ln_2.weight"),
        state(Section::Gradients, 2, "h.0.mlp_fc", "h.0.mlp_fc.bias"),
        activation(Section::Forward, 2, "h.1.attention", "attention"),
        activation(Section::Backward, 2, "h.0.attention", "attention"),
    ];
    for (number, flip) in flips.into_iter().enumerate() {
        for grid in [&[][..], &["parallel.pipeline=2", "parallel.data=2"]] {
            let path = directory.path().join(format!("{number}-{}", grid.len()));
            train(&path, GPT, &[grid, &sets].concat(), Some(flip.hook()));
            let comparison = compared(&clean, &path);
            assert!(!comparison.is_same());
            flip.is_found(comparison.parting().unwrap_or_else(|| panic!("{flip:?}: {comparison}")));
            assert_eq!(comparison.parting().unwrap().last_equal, Some(flip.step - 1));
        }
    }
}

#[test]
fn reruns_find_the_operator_between_hashed_steps() {
    let directory = tempfile::tempdir().unwrap();
    let sets = [
        "train.steps=9",
        "telemetry.hashes=4",
        "checkpoint.every=2",
        "checkpoint.keep=9",
        "checkpoint.wait=true",
        "train.validate_every=8",
    ];
    let [clean, other] = ["clean", "other"].map(|name| directory.path().join(name));
    // Sums in later steps must not round the difference away.
    let flip = Flip { bit: 22, ..activation(Section::Forward, 6, "h.1.attention", "attention") };
    train(&clean, GPT, &sets, None);
    train(&other, GPT, &[&sets[..], &["parallel.data=2"]].concat(), Some(flip.hook()));
    let scratch = directory.path().join("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let checkpoints = || checkpoint::list(&clean).unwrap();
    let before = checkpoints();
    let rerun = |hooks, name: &str| {
        let directory = scratch.join(name);
        std::fs::create_dir(&directory).unwrap();
        let options = CompareOptions { rerun: Some(RerunOptions { directory }), hooks };
        compare([&clean, &other], options).unwrap()
    };
    let comparison = rerun([None, Some(flip.hook())], "fault");
    // In the runs themselves, only step 8 shows it.
    assert_eq!((comparison.parting().unwrap().step, comparison.parting().unwrap().last_equal), (8, Some(4)));
    let again = comparison.rerun.as_ref().unwrap();
    assert_eq!((again.after, again.hashes.steps), ([4, 4], 2), "{comparison}");
    flip.is_found(again.hashes.parting.as_ref().unwrap());
    // A fault that cannot be reproduced.
    let comparison = rerun([None, None], "none");
    let again = comparison.rerun.as_ref().unwrap();
    let text = comparison.to_string();
    assert!(again.hashes.parting.is_none() && text.contains("does not repeat"), "{text}");
    assert_eq!(checkpoints(), before);
}

#[test]
fn hashes_change_no_bit_and_no_byte_and_resume() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let sets = ["train.steps=4", "checkpoint.every=2"];
    let plain = train(&path("plain"), GPT, &sets, None);
    let reads = TensorHook::new(|_, tensor| {
        // Tokens are not f32.
        let _ = tensor.to_vec::<f32>();
        Ok(())
    });
    let hashed = train(&path("hashed"), GPT, &[&sets[..], &["telemetry.hashes=1"]].concat(), Some(reads));
    assert_eq!(plain.summary.weights_sha256, hashed.summary.weights_sha256);
    let figures = |report: &TrainReport| {
        let all = report.ranks.iter().map(|rank| rank.get(telemetry::Statistic::PeakAllocatedBytes));
        all.collect::<Vec<_>>()
    };
    assert_eq!(figures(&plain), figures(&hashed));
    assert!(hashed.divergences.is_empty() && hashed.outlived.is_empty(), "{hashed}");
    // A resumed run repeats the lines of its steps.
    let lines = || hashes::read(&path("hashed").join(hashes::FILE), true).unwrap();
    let before = lines();
    assert_eq!(before.iter().map(|line| line.step).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let options = RunOptions { resume: true, step: Some(2), ..on_cpu(&path("hashed")) };
    run::train(config(GPT, &[&sets[..], &["telemetry.hashes=1"]].concat()), options).unwrap();
    assert_eq!(lines(), before);
}

#[test]
fn the_command_tells_equal_from_different_runs() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    train(&path("a"), MLP, &["telemetry.hashes=1"], None);
    train(&path("b"), MLP, &["telemetry.hashes=1", "parallel.data=2"], None);
    train(&path("<script>c"), MLP, &["optim.momentum=0.8"], None);
    let plimsoll = |arguments: &[&str]| {
        let output = Command::new(program()).current_dir(directory.path()).args(arguments).output().unwrap();
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), text[0].clone(), text[1].clone())
    };
    let (status, text, _) = plimsoll(&["compare", "a", "b"]);
    assert_eq!(status, Some(0), "{text}");
    for part in ["the same computation", "equal to the bit", "parallel.data: 1 and 2 (decides no bit)", "▁"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (status, text, _) = plimsoll(&["compare", "a", "<script>c", "--html", "page.html"]);
    assert_eq!(status, Some(1), "{text}");
    for part in
        ["not the same", "no step is hashed in both", "from step 3 on", "optim.momentum: 0.9 and 0.8 (dec"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let page = std::fs::read_to_string(path("page.html")).unwrap();
    assert!(
        page.contains("Learning curves") && page.contains("&lt;script&gt;c") && !page.contains("<script>c")
    );
    let (status, json, _) = plimsoll(&["compare", "a", "<script>c", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((status, &json["same"], &json["metrics"]["step"]), (Some(1), &false.into(), &3.into()));
    for (arguments, message) in [
        (&["compare", "a"][..], "2 values required"),
        (&["compare", "a", "missing"], "there is no run in missing"),
    ] {
        let (status, _, error) = plimsoll(arguments);
        assert!(status == Some(2) && error.contains(message), "{error}");
    }
    let hashes = std::fs::read(path("b/hashes.jsonl")).unwrap();
    std::fs::write(path("b/hashes.jsonl"), &hashes[..hashes.len() - 9]).unwrap();
    let (status, text, error) = plimsoll(&["compare", "a", "b"]);
    assert_eq!((status, text.as_str()), (Some(2), ""));
    assert!(error.contains("b/hashes.jsonl") && error.contains("the file is damaged"), "{error}");
    assert!(root().exists());
}
