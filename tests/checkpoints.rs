//! Tests of checkpoints within one process: a resumed run gives the same result as an uninterrupted one on
//! any grid, and damaged or foreign checkpoints are refused by name. `tests/kills.rs` does the same with
//! processes.

mod averages;
mod decisive;
mod files;
mod grids;
mod groups;
mod records;
mod resuming;
mod shards;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::common::runs::{
    CHAT, GPT, LLAMA, MIXTURE, MLP, PACKED, PREFERENCE, RESNET, SEQUENTIAL_MIXTURE, TOKENS, config, train_in,
};
use crate::common::sizes;
use checkpoint::{Checkpoint, Share, list, newest};
use run::{Interrupt, RunError, RunOptions, TrainReport};
use safetensors::{Dtype, SafeTensors};
use sha2::{Digest, Sha256};
use system::numbers::hexadecimal;
use worker::DeviceChoice;

/// Setting that makes steps wait for checkpoints, so that every due checkpoint is taken.
const WAIT: &str = "checkpoint.wait=true";

fn resume_with(
    directory: &Path,
    text: &str,
    overrides: &[&str],
    interrupt: Interrupt,
) -> Result<TrainReport, RunError> {
    let run_dir = Some(directory.to_owned());
    let options = RunOptions { run_dir, resume: true, interrupt, quiet: true, ..RunOptions::default() };
    run::train(config(text, overrides), options)
}

/// Trains to the end, and draws a sample.
fn sampled(directory: &Path, text: &str, overrides: &[&str]) -> TrainReport {
    let run_dir = Some(directory.to_owned());
    let sampler = Some(inference::sampler());
    let options = RunOptions { run_dir, resume: true, quiet: true, sampler, ..RunOptions::default() };
    let report = run::train(config(text, overrides), options).unwrap();
    assert!(report.divergences.is_empty() && report.outlived.is_empty(), "{report}");
    report
}

/// Asserts that one sample is the beginning of the other, because the time limit may have ended either.
fn assert_alike(sampled: &TrainReport, reference: &TrainReport) {
    match (&sampled.sample, &reference.sample) {
        (None, None) => {}
        (Some((prompt, text)), Some((other_prompt, other))) => {
            assert_eq!(prompt, other_prompt);
            let least = text.chars().count().min(other.chars().count()).saturating_sub(1);
            assert!(least > 0 && text.chars().take(least).eq(other.chars().take(least)), "{text} {other}");
        }
        (own, other) => panic!("{own:?} {other:?}"),
    }
}

fn resume(directory: &Path, text: &str, overrides: &[&str]) -> Result<TrainReport, RunError> {
    resume_with(directory, text, overrides, Interrupt::default())
}

/// Trains one step and saves a checkpoint.
fn one_step(directory: &Path, text: &str, overrides: &[&str]) -> TrainReport {
    resume_with(directory, text, overrides, Interrupt::after(1)).unwrap()
}

fn full(directory: &Path, text: &str, overrides: &[&str]) -> TrainReport {
    let report = resume(directory, text, overrides).unwrap();
    assert!(report.divergences.is_empty() && report.outlived.is_empty(), "{report}");
    report
}

/// Returns losses, weights' hash and validation loss, which must be bit-identical.
fn bits(report: &TrainReport) -> (Vec<u32>, String, Option<u64>) {
    let losses = report.summary.losses.iter().map(|loss| loss.to_bits()).collect();
    (losses, report.summary.weights_sha256.clone(), report.validation_loss.map(f64::to_bits))
}

fn steps(run_dir: &Path) -> Vec<u64> {
    list(run_dir).unwrap().into_iter().map(|(step, _)| step).collect()
}

/// Returns the step and loss of each line of `metrics.jsonl`.
fn metrics(run_dir: &Path) -> Vec<(u64, serde_json::Value)> {
    let lines = std::fs::read_to_string(run_dir.join("metrics.jsonl")).unwrap();
    let lines = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    lines.map(|line| (line["step"].as_u64().unwrap(), line["loss"].clone())).collect()
}

/// Returns the names and bytes of the arrays in a run's newest checkpoint.
fn arrays(run_dir: &Path) -> Vec<(String, Vec<u8>)> {
    let checkpoint = newest(run_dir).unwrap().unwrap();
    checkpoint.names().map(|name| (name.to_owned(), checkpoint.bytes(name).unwrap())).collect()
}

/// Returns every file below a directory, with its bytes.
fn contents(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(contents(&path))
        } else {
            all.push((path.clone(), std::fs::read(&path).unwrap()))
        }
    }
    all.sort();
    all
}

/// Reads the records of the processes that trained in a run directory.
fn sessions(run_dir: &Path) -> Vec<serde_json::Value> {
    serde_json::from_slice(&std::fs::read(run_dir.join("sessions.json")).unwrap()).unwrap()
}

fn copy(from: &Path, to: &Path) {
    write(&files(from), to);
}

/// Files of a run, by their paths below its directory.
type Files = Vec<(PathBuf, Vec<u8>)>;

fn files(run_dir: &Path) -> Files {
    let below = |path: PathBuf| path.strip_prefix(run_dir).unwrap().to_owned();
    contents(run_dir).into_iter().map(|(path, bytes)| (below(path), bytes)).collect()
}

/// Writes files below a directory.
fn write(files: &Files, to: &Path) {
    for (path, bytes) in files {
        let target = to.join(path);
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::write(target, bytes).unwrap();
    }
}

#[test]
fn sharded_and_whole_optimizer_state_give_equal_checkpoints() {
    const SHARDED: &str = "parallel.zero_stage=1";
    let table: [(&str, &[&str]); 4] = [
        (GPT, &["model.width=64", "optim.clip_norm=0.1"]),
        (GPT, &["train.freeze=['*.bias', 'h.1.*']", "train.ema=0.9"]),
        (MLP, &[]),
        (MLP, &["optim.kind=adamw", "parallel.bucket_bytes=512"]),
    ];
    for (text, overrides) in table {
        let directory = tempfile::tempdir().unwrap();
        let whole = directory.path().join("whole");
        let parts = directory.path().join("parts");
        let all = |more: &[&'static str]| [overrides, &["checkpoint.every=1000"], more].concat();
        let reference = sampled(&whole, text, &all(&["parallel.data=1"]));
        // Sharded, whole, differently sharded together with the weights, and in groups.
        for grid in [
            &["parallel.data=2", SHARDED][..],
            &["parallel.data=2"],
            &["parallel.data=3", "parallel.zero_stage=3"],
            &["parallel.data=4", "parallel.zero_stage=3", "parallel.shard=2"],
        ] {
            assert!(one_step(&parts, text, &all(grid)).interrupted);
        }
        let report = sampled(&parts, text, &all(&["parallel.data=4", SHARDED]));
        assert!(report.unplanned.as_ref().is_some_and(Vec::is_empty));
        assert_eq!(bits(&report), bits(&reference), "{overrides:?}");
        assert_alike(&report, &reference);
        assert!(arrays(&parts) == arrays(&whole), "{overrides:?}");
    }
}

/// Checks that one rank, a pipeline and replicated pipelines write equal checkpoints, and each grid resumes
/// each of them.
#[test]
fn pipelines_write_the_checkpoints_of_one_rank() {
    const SHARDED: &str = "parallel.zero_stage=1";
    let table: [(&str, &[&str]); 3] = [
        (GPT, &["model.layers=4", "optim.clip_norm=0.1", "train.ema=0.9"]),
        (MLP, &["optim.kind=adamw"]),
        (RESNET, &["train.steps=6"]),
    ];
    for (text, overrides) in table {
        let directory = tempfile::tempdir().unwrap();
        let whole = directory.path().join("whole");
        let parts = directory.path().join("parts");
        let all = |more: &[&'static str]| [overrides, &["checkpoint.every=1000"], more].concat();
        let reference = sampled(&whole, text, &all(&["parallel.data=1"]));
        for grid in [
            &["parallel.pipeline=4"][..],
            &["parallel.data=2", SHARDED],
            &["parallel.pipeline=2", "parallel.data=2", SHARDED, "parallel.schedule=zero-bubble"],
            &["parallel.pipeline=2", "parallel.data=2", "parallel.zero_stage=3"],
        ] {
            assert!(one_step(&parts, text, &all(grid)).interrupted);
        }
        let last = ["parallel.pipeline=2", "parallel.schedule=interleaved", "parallel.data=2"];
        let report = sampled(&parts, text, &all(&last));
        assert!(report.unplanned.as_ref().is_some_and(Vec::is_empty));
        assert_eq!(bits(&report), bits(&reference), "{overrides:?}");
        assert_alike(&report, &reference);
        assert!(arrays(&parts) == arrays(&whole), "{overrides:?}");
    }
}

/// Checks that tensor-parallel ranks write their parts of layers, and each grid resumes another's checkpoint.
#[test]
fn parts_of_layers_are_parts_of_one_checkpoint() {
    const SHARDED: &str = "parallel.zero_stage=1";
    const ZERO_3: &str = "parallel.zero_stage=3";
    const TWO: &str = "parallel.tensor=2";
    const FOUR: &str = "parallel.tensor=4";
    const ALL: &str = "model.qk_norm_span=all";
    let table: [(&str, &[&str]); 4] = [
        (GPT, &["model.heads=4", "optim.clip_norm=0.1", "model.dropout=0.1", "train.neftune_alpha=5"]),
        (
            LLAMA,
            &["model.key_value_heads=4", "model.qk_norm=true", ALL, "model.width=64", "optim.state=8bit"],
        ),
        (
            LLAMA,
            &[
                "model.key_value_heads=4",
                "lora.rank=2",
                "lora.targets=['all-linear', 'lm_head']",
                "train.ema=0.9",
            ],
        ),
        (GPT, &["model.heads=4", "model.width=128", "precision.compute=bf16", "train.freeze=['*.bias']"]),
    ];
    for (row, (text, overrides)) in table.into_iter().enumerate() {
        let directory = tempfile::tempdir().unwrap();
        let whole = directory.path().join("whole");
        let parts = directory.path().join("parts");
        let grids = [
            &[TWO][..],
            &["parallel.data=2", FOUR, ZERO_3],
            &["parallel.data=1"],
            &["parallel.data=3", TWO, SHARDED],
            &["parallel.pipeline=2", TWO],
            &["parallel.pipeline=2"],
            &["parallel.data=3", SHARDED],
        ];
        // The first configuration runs on all grids, each for a step.
        let grids = &grids[..if row == 0 || sizes::are_wanted() { 7 } else { 4 }];
        let steps = format!("train.steps={}", grids.len() + 1);
        let lanes = ["parallel.tensor_lanes=4", "checkpoint.every=1000", &steps];
        let all = |more: &[&'static str]| [overrides, &lanes, more].concat();
        let reference = sampled(&whole, text, &all(&[]));
        for grid in grids {
            assert!(one_step(&parts, text, &all(grid)).interrupted);
        }
        let report = sampled(&parts, text, &all(&[FOUR, "parallel.pipeline=2"]));
        assert!(report.unplanned.as_ref().is_some_and(Vec::is_empty));
        assert_eq!(bits(&report), bits(&reference), "{overrides:?}");
        assert_alike(&report, &reference);
        assert!(arrays(&parts) == arrays(&whole), "{overrides:?}");
    }
}

/// Checks that context-parallel ranks hold the same state, and each grid resumes each checkpoint.
#[test]
fn ranks_that_share_sequences_write_one_checkpoint() {
    const TWO: &str = "parallel.context=2";
    const TENSOR: &str = "parallel.tensor=2";
    let table: [(&str, &[&str]); 3] = [
        (
            GPT,
            &["parallel.tensor_lanes=2", "optim.clip_norm=0.1", "model.dropout=0.1", "train.neftune_alpha=5"],
        ),
        (
            LLAMA,
            &[
                "parallel.tensor_lanes=2",
                "model.layer_types=['attention_and_state_space', 'linear_attention']",
                "model.state_heads=4",
                "model.state_groups=1",
                "model.state_norm_groups=1",
                "model.state_head_width=6",
                "model.state_width=6",
                "model.linear_value_heads=4",
                "model.linear_key_width=8",
            ],
        ),
        (LLAMA, &["parallel.tensor_lanes=2", "model.qk_norm=true", "model.width=64", "optim.state=8bit"]),
    ];
    for (text, overrides) in table {
        let directory = tempfile::tempdir().unwrap();
        let whole = directory.path().join("whole");
        let parts = directory.path().join("parts");
        let pieces = ["parallel.context_lanes=4", "checkpoint.every=1000", "train.steps=7"];
        let all = |more: &[&'static str]| [overrides, &pieces, more].concat();
        let reference = sampled(&whole, text, &all(&[]));
        for grid in [
            &[TWO][..],
            &["parallel.data=2", TWO, TENSOR, "parallel.zero_stage=3"],
            &[TENSOR],
            &["parallel.pipeline=2", TWO],
            &[TWO, "parallel.zero_stage=2"],
            &["parallel.data=3", TWO, "parallel.zero_stage=1"],
        ] {
            assert!(one_step(&parts, text, &all(grid)).interrupted);
        }
        let report = sampled(&parts, text, &all(&[TWO, TENSOR, "parallel.pipeline=2"]));
        assert!(report.unplanned.as_ref().is_some_and(Vec::is_empty));
        assert_eq!(bits(&report), bits(&reference), "{overrides:?}");
        assert_alike(&report, &reference);
        assert!(arrays(&parts) == arrays(&whole), "{overrides:?}");
    }
}

/// Returns `directory/run` with the files of a run that `train` makes for the first of all callers.
fn once(made: &OnceLock<Files>, directory: &Path, train: impl FnOnce(&Path)) -> PathBuf {
    let run_dir = directory.join("run");
    let made = made.get_or_init(|| {
        let first = tempfile::tempdir().unwrap();
        train(first.path());
        files(first.path())
    });
    write(made, &run_dir);
    run_dir
}

/// Returns a finished run of six steps with checkpoints after steps 2, 4 and 6.
fn finished(directory: &Path) -> PathBuf {
    static FILES: OnceLock<Files> = OnceLock::new();
    once(&FILES, directory, |run_dir| {
        full(run_dir, GPT, &["checkpoint.every=2", "checkpoint.keep=9", WAIT]);
    })
}

type Damage = fn(&Path);

fn rewrite(path: &Path, change: impl Fn(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

fn flip(path: &Path, index: impl Fn(usize) -> usize) {
    rewrite(path, |bytes| {
        let index = index(bytes.len());
        bytes[index] ^= 0x10;
    });
}

#[test]
fn damaged_checkpoints_are_refused_by_name_and_unchanged() {
    const STATE: &str = "state.safetensors";
    const MANIFEST: &str = "manifest.json";
    let table: [(&str, &str, Damage); 12] = [
        (STATE, "it is truncated: it has", |c| rewrite(&c.join(STATE), |b| b.truncate(b.len() - 1))),
        (STATE, "it is truncated: it has 0 bytes", |c| rewrite(&c.join(STATE), Vec::clear)),
        (STATE, "it is longer than it was", |c| rewrite(&c.join(STATE), |b| b.push(0))),
        (STATE, "it is corrupted", |c| flip(&c.join(STATE), |_| 0)),
        (STATE, "it is corrupted", |c| flip(&c.join(STATE), |_| 200)),
        (STATE, "it is corrupted", |c| flip(&c.join(STATE), |len| len / 2)),
        (STATE, "it is corrupted", |c| flip(&c.join(STATE), |len| len - 1)),
        (STATE, "cannot open it", |c| std::fs::remove_file(c.join(STATE)).unwrap()),
        (MANIFEST, "it is truncated or corrupted", |c| rewrite(&c.join(MANIFEST), |b| b.truncate(100))),
        (MANIFEST, "it is corrupted", |c| {
            rewrite(&c.join(MANIFEST), |bytes| {
                let text = String::from_utf8(bytes.clone()).unwrap();
                assert!(text.contains(r#""model.width": "32""#));
                *bytes = text.replace(r#""model.width": "32""#, r#""model.width": "64""#).into_bytes();
            })
        }),
        (MANIFEST, "its format is 2, and this version of Plimsoll reads 1", |c| {
            rewrite(&c.join(MANIFEST), |bytes| {
                let text = String::from_utf8(bytes.clone()).unwrap();
                *bytes = text.replace(r#""format": 1"#, r#""format": 2"#).into_bytes();
            })
        }),
        (MANIFEST, "cannot read it", |c| std::fs::remove_file(c.join(MANIFEST)).unwrap()),
    ];
    let directory = tempfile::tempdir().unwrap();
    let run_dir = finished(directory.path());
    for (number, (file, expected, damage)) in table.into_iter().enumerate() {
        let copied = directory.path().join(format!("copy-{number}"));
        copy(&run_dir, &copied);
        let checkpoints = copied.join("checkpoints");
        damage(&checkpoints.join("step-000006"));
        damage(&checkpoints.join("step-000004"));
        let before = contents(&copied);
        let refused = resume(&copied, GPT, &["checkpoint.every=2"]).unwrap_err();
        let text = refused.to_string();
        assert_eq!(refused.exit_status(), 2, "{text}");
        let named = format!("{}: {expected}", checkpoints.join("step-000006").join(file).display());
        assert!(text.starts_with(&named), "{text}\n{named}");
        let advice = format!("step-000002 is intact: delete {}", checkpoints.join("step-000006").display());
        assert!(text.contains(&advice), "{text}");
        assert!(contents(&copied) == before, "{text}");
        assert!(Checkpoint::open(&checkpoints.join("step-000004")).is_err());
        let sampled = inference::sample(
            run::Startup::alone(),
            &inference::SampleOptions { model: copied.clone(), ..Default::default() },
            std::sync::Arc::new(|_| Ok(())),
        );
        assert_eq!(sampled.unwrap_err().to_string(), text);
        // The advice in the message works; it is the same for each damage to a file.
        if ![0, 8].contains(&number) {
            continue;
        }
        for step in ["step-000006", "step-000004"] {
            std::fs::remove_dir_all(checkpoints.join(step)).unwrap();
        }
        let report = resume(&copied, GPT, &["checkpoint.every=2"]).unwrap();
        assert_eq!(report.summary.more["resumed_after_step"], 2);
    }
    let moved = run_dir.join("checkpoints/step-000009");
    std::fs::rename(run_dir.join("checkpoints/step-000006"), &moved).unwrap();
    let text = resume(&run_dir, GPT, &[]).unwrap_err().to_string();
    assert!(text.contains("it holds step 6, and its name says 9"), "{text}");
}
