//! Checkpoints within one process: a resumed run gives the same result as an uninterrupted one, on any grid;
//! damaged or foreign checkpoints are refused by name. `tests/kills.rs` does the same with processes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests, a panic is the report of a failure")]

mod common;

use std::path::{Path, PathBuf};

use checkpoint::{Checkpoint, list, newest};
use common::runs::{GPT, MLP, config, train_in};
use run::RunError;
use run::{Interrupt, RunOptions, TrainReport};
use safetensors::{Dtype, SafeTensors};
use sha2::{Digest, Sha256};
use worker::DeviceChoice;

/// Every due checkpoint is taken at its step.
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

fn resume(directory: &Path, text: &str, overrides: &[&str]) -> Result<TrainReport, RunError> {
    resume_with(directory, text, overrides, Interrupt::default())
}

/// Trains one step and saves it.
fn one_step(directory: &Path, text: &str, overrides: &[&str]) -> TrainReport {
    let interrupt = Interrupt::default();
    interrupt.raise();
    resume_with(directory, text, overrides, interrupt).unwrap()
}

fn full(directory: &Path, text: &str, overrides: &[&str]) -> TrainReport {
    train_in(directory, config(text, overrides), DeviceChoice::Cpu).unwrap()
}

/// Losses, weights and validation loss, which must be equal to the bit.
fn bits(report: &TrainReport) -> (Vec<u32>, String, Option<u64>) {
    let losses = report.summary.losses.iter().map(|loss| loss.to_bits()).collect();
    (losses, report.summary.weights_sha256.clone(), report.validation_loss.map(f64::to_bits))
}

fn steps(run_dir: &Path) -> Vec<u64> {
    list(run_dir).unwrap().into_iter().map(|(step, _)| step).collect()
}

/// Step and loss of each line of `metrics.jsonl`.
fn metrics(run_dir: &Path) -> Vec<(u64, serde_json::Value)> {
    let lines = std::fs::read_to_string(run_dir.join("metrics.jsonl")).unwrap();
    let lines = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    lines.map(|line| (line["step"].as_u64().unwrap(), line["loss"].clone())).collect()
}

/// Every file below a directory, with its bytes.
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

fn copy(from: &Path, to: &Path) {
    for (path, bytes) in contents(from) {
        let target = to.join(path.strip_prefix(from).unwrap());
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::write(target, bytes).unwrap();
    }
}

#[test]
fn runs_stopped_after_any_step_continue_on_other_grids() {
    let table: [(&str, &[&str]); 5] = [
        (GPT, &[]),
        (MLP, &[]),
        (GPT, &["train.freeze=['wpe.*', 'h.0.*']"]),
        (GPT, &["optim.kind=sgd", "optim.momentum=0"]),
        (MLP, &["optim.kind=adamw", "parallel.lanes=8"]),
    ];
    for (text, overrides) in table {
        let directory = tempfile::tempdir().unwrap();
        let (whole, parts) = (directory.path().join("whole"), directory.path().join("parts"));
        let all = |more: &[&'static str]| [overrides, &["checkpoint.every=1000"], more].concat();
        let reference = full(&whole, text, &all(&[]));
        for (step, grid) in ["parallel.data=1", "parallel.data=2", "parallel.data=4"].into_iter().enumerate()
        {
            let report = one_step(&parts, text, &all(&[grid]));
            assert!(report.interrupted);
            assert_eq!(report.summary.steps, step as u64 + 1);
            assert_eq!(steps(&parts).last(), Some(&(step as u64 + 1)), "{overrides:?}");
        }
        let report = resume(&parts, text, &all(&["parallel.data=2"])).unwrap();
        assert!(!report.interrupted);
        assert!(report.unplanned.as_ref().is_some_and(Vec::is_empty), "the plan is the rest of the run too");
        assert_eq!(bits(&report), bits(&reference), "{overrides:?}");
        assert_eq!(report.summary.more["resumed_after_step"], 3);
        assert_eq!(metrics(&parts), metrics(&whole));
        // Momentum and moments are equal to the bit too.
        let state = |run_dir: &Path| newest(run_dir).unwrap().unwrap().path().join("state.safetensors");
        assert!(std::fs::read(state(&parts)).unwrap() == std::fs::read(state(&whole)).unwrap());
        // Resuming a finished run changes nothing.
        let before = contents(&parts);
        assert_eq!(bits(&resume(&parts, text, &all(&[])).unwrap()), bits(&reference));
        assert!(contents(&parts) == before, "{overrides:?}");
    }
}

#[test]
fn sharded_and_whole_optimizer_state_give_equal_checkpoints() {
    const SHARDED: &str = "parallel.zero_stage=1";
    let table: [(&str, &[&str]); 4] = [
        (GPT, &["model.width=64", "optim.clip_norm=0.1"]),
        (GPT, &["train.freeze=['*.bias', 'h.1.*']"]),
        (MLP, &[]),
        (MLP, &["optim.kind=adamw", "parallel.bucket_bytes=512"]),
    ];
    for (text, overrides) in table {
        let directory = tempfile::tempdir().unwrap();
        let (whole, parts) = (directory.path().join("whole"), directory.path().join("parts"));
        let all = |more: &[&'static str]| [overrides, &["checkpoint.every=1000"], more].concat();
        let reference = full(&whole, text, &all(&["parallel.data=1"]));
        // Sharded, whole, sharded differently.
        for grid in [&["parallel.data=4", SHARDED][..], &["parallel.data=2"], &["parallel.data=2", SHARDED]] {
            assert!(one_step(&parts, text, &all(grid)).interrupted);
        }
        let report = resume(&parts, text, &all(&["parallel.data=4", SHARDED])).unwrap();
        assert!(report.unplanned.as_ref().is_some_and(Vec::is_empty));
        assert_eq!(bits(&report), bits(&reference), "{overrides:?}");
        assert_eq!(report.sample, reference.sample);
        let state = |run_dir: &Path| newest(run_dir).unwrap().unwrap().path().join("state.safetensors");
        assert!(std::fs::read(state(&parts)).unwrap() == std::fs::read(state(&whole)).unwrap());
    }
}

/// One rank, a pipeline and replicated pipelines write equal checkpoints, and each grid resumes each.
#[test]
fn pipelines_write_the_checkpoints_of_one_rank() {
    const SHARDED: &str = "parallel.zero_stage=1";
    let table: [(&str, &[&str]); 2] =
        [(GPT, &["model.layers=4", "optim.clip_norm=0.1"]), (MLP, &["optim.kind=adamw"])];
    for (text, overrides) in table {
        let directory = tempfile::tempdir().unwrap();
        let (whole, parts) = (directory.path().join("whole"), directory.path().join("parts"));
        let all = |more: &[&'static str]| [overrides, &["checkpoint.every=1000"], more].concat();
        let reference = full(&whole, text, &all(&["parallel.data=1"]));
        for grid in [
            &["parallel.pipeline=4"][..],
            &["parallel.data=2", SHARDED],
            &["parallel.pipeline=2", "parallel.data=2", SHARDED, "parallel.schedule=zero-bubble"],
            &["parallel.data=1"],
        ] {
            assert!(one_step(&parts, text, &all(grid)).interrupted);
        }
        let last = ["parallel.pipeline=2", "parallel.schedule=interleaved", "parallel.data=2"];
        let report = resume(&parts, text, &all(&last)).unwrap();
        assert!(report.unplanned.as_ref().is_some_and(Vec::is_empty));
        assert_eq!(bits(&report), bits(&reference), "{overrides:?}");
        assert_eq!(report.sample, reference.sample);
        let state = |run_dir: &Path| newest(run_dir).unwrap().unwrap().path().join("state.safetensors");
        assert!(std::fs::read(state(&parts)).unwrap() == std::fs::read(state(&whole)).unwrap());
    }
}

#[test]
fn checkpoints_change_nothing_and_the_newest_are_kept() {
    // `checkpoint.every`, `checkpoint.keep`, `checkpoint.minutes`, and the steps whose checkpoints remain
    // after six.
    let table: [(u64, u64, f64, &[u64]); 7] = [
        (1, 2, 10.0, &[5, 6]),
        (2, 9, 10.0, &[2, 4, 6]),
        (4, 1, 0.0, &[6]),
        (4, 2, 10.0, &[4, 6]),
        (0, 1, 0.0, &[]),
        // By default, and by a time that has passed after every step.
        (0, 9, 10.0, &[6]),
        (0, 9, 1e-9, &[1, 2, 3, 4, 5, 6]),
    ];
    let mut expected = None;
    for (every, keep, minutes, left) in table {
        let directory = tempfile::tempdir().unwrap();
        let run_dir = directory.path().join("run");
        let overrides = [
            format!("checkpoint.every={every}"),
            format!("checkpoint.keep={keep}"),
            format!("checkpoint.minutes={minutes}"),
        ];
        let report = full(&run_dir, GPT, &[&overrides[0], &overrides[1], &overrides[2], WAIT]);
        assert_eq!(steps(&run_dir), left, "every {every}, keep {keep}, {minutes} minutes");
        assert!(report.unplanned.as_ref().is_some_and(Vec::is_empty));
        assert_eq!(&bits(&report), expected.get_or_insert_with(|| bits(&report)));
        let is_hidden =
            |(path, _): &(PathBuf, _)| path.strip_prefix(&run_dir).unwrap().to_string_lossy().contains("/.");
        let hidden = contents(&run_dir).iter().any(is_hidden);
        assert!(!hidden, "nothing temporary is left");
    }
}

#[test]
fn the_state_is_a_safetensors_file() {
    let directory = tempfile::tempdir().unwrap();
    let report = full(directory.path(), GPT, &["checkpoint.every=3"]);
    let checkpoint = newest(directory.path()).unwrap().unwrap();
    assert_eq!(checkpoint.step(), 6);
    assert_eq!(checkpoint.losses().unwrap(), report.summary.losses);
    assert_eq!(checkpoint.validations().last, report.validation_loss);
    assert_eq!(checkpoint.configuration()["model.width"], "32");
    assert!(!checkpoint.configuration().contains_key("parallel.data"));
    let bytes = std::fs::read(checkpoint.path().join("state.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let names = file.names();
    let parameters: Vec<_> =
        names.iter().filter(|name| !name.starts_with("adamw.") && !name.starts_with("run.")).collect();
    assert!(parameters.len() > 20);
    assert_eq!(names.len(), 3 * parameters.len() + 1);
    for name in parameters {
        let of = |name: &str| file.tensor(name).unwrap();
        assert_eq!(of(name).dtype(), Dtype::F32);
        for moment in ["first", "second"] {
            let moment = of(&format!("adamw.{moment}.{name}"));
            assert_eq!(moment.shape(), of(name).shape());
            assert!(moment.data().iter().any(|byte| *byte != 0), "{name}");
        }
    }
}

/// A finished run of six steps with checkpoints after 2, 4 and 6.
fn finished(directory: &Path) -> PathBuf {
    let run_dir = directory.join("run");
    full(&run_dir, GPT, &["checkpoint.every=2", "checkpoint.keep=9", WAIT]);
    run_dir
}

type Damage = fn(&Path);

fn rewrite(path: &Path, change: impl Fn(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

fn flip(path: &Path, place: impl Fn(usize) -> usize) {
    rewrite(path, |bytes| {
        let place = place(bytes.len());
        bytes[place] ^= 0x10;
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
        let sampled =
            run::sample(&run::SampleOptions { run_dir: copied.clone(), ..Default::default() }, &mut |_| {
                Ok(())
            });
        assert_eq!(sampled.unwrap_err().to_string(), text);
        // The advice in the message works.
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

#[test]
fn checkpoints_of_other_runs_are_refused_by_key() {
    let table: [(&[&str], &str); 8] = [
        (&["model.width=64"], "model.width cannot change when a run goes on: 64 here, 32 in the checkpoint"),
        (
            &["model.heads=4", "train.seed=7"],
            "these settings cannot change when a run goes on: model.heads: 4 here, 2 in the checkpoint; \
             train.seed: 7 here, 1 in the checkpoint",
        ),
        (&["optim.kind=sgd"], "optim.kind: \"sgd\" here, \"adamw\" in the checkpoint"),
        (&["train.steps=5"], "train.steps = 5: "),
        (
            &["train.micro_batch_size=4", "train.global_batch_size=16"],
            "train.global_batch_size: 16 here, 8 in the checkpoint; \
             train.micro_batch_size: 4 here, 2 in the checkpoint",
        ),
        (&["parallel.lanes=2"], "parallel.lanes cannot change when a run goes on: 2 here, 4 in the"),
        (&["data.validation_fraction=0.1"], "data.validation_fraction cannot change"),
        (&["data.paths=['README.md']"], "data.paths: it is not the text that"),
    ];
    let directory = tempfile::tempdir().unwrap();
    let run_dir = finished(directory.path());
    let before = contents(&run_dir);
    for (overrides, expected) in table {
        let refused = resume(&run_dir, GPT, overrides).unwrap_err();
        let text = refused.to_string();
        assert_eq!(refused.exit_status(), 2, "{text}");
        assert!(text.contains(expected) && text.contains("step-000006"), "{text}");
        assert!(contents(&run_dir) == before, "{text}");
    }
}

/// Keys that may change when a run is resumed: those that decide no bits, and those that decide later ones.
#[test]
fn a_run_resumes_with_other_steps_schedule_and_regularisation() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = finished(directory.path());
    let reference = newest(&run_dir).unwrap().unwrap().losses().unwrap();
    for free in [
        &["train.steps=8", "optim.learning_rate=2e-3", "optim.min_learning_rate=1e-5"][..],
        &["train.steps=9", "optim.warmup_steps=1", "optim.weight_decay=0", "optim.clip_norm=0.1"],
        &[
            "train.steps=10",
            "parallel.data=2",
            "telemetry.every=1",
            "checkpoint.keep=1",
            "memory.limit_bytes=1000000000",
            "train.validate_every=1",
            "parallel.bucket_bytes=512",
        ],
    ] {
        let before = newest(&run_dir).unwrap().unwrap().step();
        let report = resume(&run_dir, GPT, &[free, &["checkpoint.every=100"]].concat()).unwrap();
        assert_eq!(report.summary.more["resumed_after_step"], before);
        assert_eq!(report.summary.losses[..6], reference);
        assert!(report.unplanned.as_ref().is_some_and(Vec::is_empty), "{free:?}");
        let steps = newest(&run_dir).unwrap().unwrap().step();
        assert_eq!((steps, metrics(&run_dir).len() as u64), (report.summary.steps, steps));
    }
    assert_eq!(steps(&run_dir), [10]);
}

#[test]
fn a_run_resumes_from_an_earlier_step() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = finished(directory.path());
    let whole = bits(&full(&directory.path().join("whole"), GPT, &[]));
    let go_on = |step: u64| {
        let run_dir = Some(run_dir.clone());
        let step = Some(step);
        let options = RunOptions { run_dir, step, resume: true, quiet: true, ..RunOptions::default() };
        run::train(config(GPT, &["checkpoint.every=2", WAIT]), options)
    };
    let text = go_on(3).unwrap_err().to_string();
    assert!(text.ends_with("it holds no checkpoint of step 3; there is one of step 2, 4, 6"), "{text}");
    let report = go_on(2).unwrap();
    assert_eq!(report.summary.more["resumed_after_step"], 2);
    assert_eq!(bits(&report), whole);
    // Checkpoints of the abandoned steps are kept, but not used by the run.
    let aside = run_dir.join("checkpoints/aside-1");
    assert!(Checkpoint::open(&aside.join("step-000004")).is_ok());
    assert!(Checkpoint::open(&aside.join("step-000006")).is_ok());
    assert_eq!(steps(&run_dir), [4, 6]);
}

/// `--from` uses only the weights, on any grid, and reports mismatches before anything is written.
#[test]
fn a_new_run_starts_with_the_weights_of_another() {
    let directory = tempfile::tempdir().unwrap();
    let old = finished(directory.path());
    let start = |name: &str, from: &Path, step: Option<u64>, overrides: &[&str]| {
        let run_dir = Some(directory.path().join(name));
        let from = Some(from.to_owned());
        let options = RunOptions { run_dir, from, step, quiet: true, ..RunOptions::default() };
        run::train(config(GPT, overrides), options)
    };
    let other = ["train.steps=3", "train.seed=9", "optim.learning_rate=1e-5", "data.paths=['README.md']"];
    let first = start("a", &old, None, &other).unwrap();
    assert_eq!(first.summary.losses.len(), 3);
    assert!(!first.summary.more.contains_key("resumed_after_step"));
    // The weights are those of the other run: the loss begins far below that of random ones.
    let drawn = full(&directory.path().join("drawn"), GPT, &other);
    assert!(first.summary.losses[0] + 0.1 < drawn.summary.losses[0], "{:?}", first.summary.losses);
    let checkpoint = old.join("checkpoints/step-000006");
    for (name, overrides) in [
        ("b", &["parallel.data=2", "parallel.zero_stage=1"][..]),
        ("c", &["parallel.pipeline=2"]),
        ("d", &["parallel.data=4"]),
    ] {
        let again = start(name, &checkpoint, None, &[&other, overrides].concat()).unwrap();
        assert_eq!(bits(&again), bits(&first), "{overrides:?}");
    }
    let earlier = start("e", &old, Some(2), &other).unwrap();
    assert_ne!(earlier.summary.losses, first.summary.losses);
    for (from, step, overrides, expected) in [
        (&old, None, &["model.width=64"][..], "it is of another model: model.width: 64 here, 32 in the"),
        (&old, Some(5), &[], "it holds no checkpoint of step 5; there is one of step 2, 4, 6"),
        (&directory.path().to_owned(), None, &[], "it holds no checkpoint; set checkpoint.every"),
    ] {
        let refused = start("f", from, step, overrides).unwrap_err();
        assert!(refused.exit_status() == 2 && refused.to_string().contains(expected), "{refused}");
        assert!(!directory.path().join("f").exists());
    }
}

/// Reads the summary written at the end of a run.
fn summary(run_dir: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(run_dir.join("summary.json")).unwrap()).unwrap()
}

fn sessions(run_dir: &Path) -> Vec<serde_json::Value> {
    serde_json::from_slice(&std::fs::read(run_dir.join("sessions.json")).unwrap()).unwrap()
}

/// Each process that trained in a directory has a record there, which later ones keep.
#[test]
fn sessions_are_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    assert!(one_step(&run_dir, GPT, &["parallel.data=2"]).interrupted);
    let first = sessions(&run_dir);
    assert_eq!(first.len(), 1);
    assert_eq!((&first[0]["ending"], &first[0]["after_step"]), (&"interrupted".into(), &0.into()));
    assert_eq!(first[0]["grid"], serde_json::json!({"data": 2, "pipeline": 1}));
    assert_eq!(first[0]["results"]["steps"], 1);
    resume(&run_dir, GPT, &["optim.clip_norm=0.5"]).unwrap();
    let second = sessions(&run_dir);
    assert_eq!((second.len(), &second[0]), (2, &first[0]));
    assert_eq!((&second[1]["ending"], &second[1]["after_step"]), (&"complete".into(), &1.into()));
    let changed = second[1]["changed"].as_object().unwrap();
    assert_eq!(changed.keys().collect::<Vec<_>>(), ["optim.clip_norm"]);
    assert_eq!(changed["optim.clip_norm"]["to"], "0.5");
    let results = &second[1]["results"];
    let peak = summary(&run_dir)["ranks"][0]["peak_allocated_bytes"].clone();
    assert_eq!((&results["steps"], &results["peak_allocated_bytes"]), (&6.into(), &peak));
    assert!(results["tokens_per_second"].as_f64().unwrap() > 0.0);
    assert!(results["wall_seconds"].as_f64().unwrap() > 0.0);
    // Nothing is left to do: the record is unchanged, with other settings too.
    let before = contents(&run_dir);
    let report = resume(&run_dir, GPT, &["parallel.data=2", "telemetry.every=1"]).unwrap();
    assert_eq!(report.summary.world_size, 1);
    assert!(report.to_string().contains("did 6 steps"), "{report}");
    assert!(contents(&run_dir) == before);
}

/// A loss that is not finite ends the run, which keeps its earlier checkpoints and names them.
#[test]
fn a_loss_that_is_not_finite_is_never_saved() {
    let wild = [
        "optim.learning_rate=1e6",
        "optim.warmup_steps=0",
        "optim.clip_norm=0",
        "train.steps=60",
        "checkpoint.every=1",
        WAIT,
    ];
    for (most, grid) in [(1, "parallel.data=1"), (1, "parallel.pipeline=2"), (3, "parallel.data=2")] {
        let directory = tempfile::tempdir().unwrap();
        let run_dir = directory.path().join("run");
        let most_steps = format!("train.max_nonfinite_steps={most}");
        let all = [&wild[..], &[grid, &most_steps]].concat();
        let error = train_in(&run_dir, config(GPT, &all), DeviceChoice::Cpu).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.exit_status(), 1, "{text}");
        let summary = summary(&run_dir);
        let last = summary["nonfinite"]["step"].as_u64().unwrap();
        assert!(last < 60 && summary["steps"] == last, "{summary}");
        let kept = newest(&run_dir).unwrap().unwrap();
        assert_eq!(kept.step(), last - most, "{grid}");
        assert!(kept.losses().unwrap().iter().all(|loss| loss.is_finite()));
        let named = format!("the last good checkpoint is {}", kept.path().display());
        assert!(text.starts_with(&format!("step {last}: the loss is ")), "{text}");
        assert!(text.contains("and the gradient norm ") && text.ends_with(&named), "{text}");
        assert_eq!(sessions(&run_dir)[0]["ending"], "non_finite");
        let page = run::report_run(&run_dir).unwrap().to_html();
        assert!(page.contains(&format!("This run ended after step {last}: its loss is ")));
        assert!(page.contains("<path class=\"lost\""));
    }
}

/// Rewrites a manifest, with its own hash.
fn rewrite_manifest(path: &Path, change: impl Fn(&str) -> String) {
    let text = change(&std::fs::read_to_string(path).unwrap());
    let (before, rest) = text.split_once("\"manifest_sha256\": \"").unwrap();
    let (_, after) = rest.split_once('"').unwrap();
    let with = |hash: &str| format!("{before}\"manifest_sha256\": \"{hash}\"{after}");
    // The hash is that of the text without indentation, in which no value contains a colon followed by a
    // space.
    let bare = with("").lines().map(str::trim).collect::<String>().replace("\": ", "\":");
    std::fs::write(path, with(&format!("{:x}", Sha256::digest(bare)))).unwrap();
}

/// A checkpoint of another version of Plimsoll or its libraries is resumed, and the record has a warning.
#[test]
fn checkpoints_of_other_versions_are_resumed_with_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let corpus = directory.path().join("corpus.txt");
    let text = "The load line of a ship says how much she may carry, and in which waters.\n".repeat(100);
    std::fs::write(&corpus, &text).unwrap();
    let paths = format!("data.paths=['{}']", corpus.display());
    let version = format!("\"version\": \"{}\"", env!("CARGO_PKG_VERSION"));
    // A checkpoint of the next version, and one of a version that hashed the whole corpus and named no
    // libraries.
    let earlier = |text: &str| {
        let (before, rest) = text.split_once("  \"corpus\": {").unwrap();
        let (_, after) = rest.split_once("  },\n").unwrap();
        let hash = format!("\"corpus_sha256\": \"{:x}\"", Sha256::digest(std::fs::read(&corpus).unwrap()));
        let text = format!("{before}{after}").replace("\"corpus_sha256\": null", &hash);
        text.replace("  \"libraries\": \"\",\n", "").replace(&version, "\"version\": \"0.0.1\"")
    };
    let next = |text: &str| {
        let text = text.replace("\"libraries\": \"\"", "\"libraries\": \"cuBLAS 99\"");
        text.replace(&version, "\"version\": \"9.9.9\"")
    };
    type Rewrite<'a> = &'a dyn Fn(&str) -> String;
    let table: [(&str, Rewrite, &[&str]); 2] = [
        ("earlier", &earlier, &["written by Plimsoll 0.0.1, and this is"]),
        ("next", &next, &["written by Plimsoll 9.9.9", "written by the libraries cuBLAS 99"]),
    ];
    for (name, rewrite, expected) in table {
        let run_dir = directory.path().join(name);
        std::fs::write(&corpus, &text).unwrap();
        assert!(one_step(&run_dir, GPT, &[&paths]).interrupted);
        rewrite_manifest(&run_dir.join("checkpoints/step-000001/manifest.json"), rewrite);
        resume(&run_dir, GPT, &[&paths]).unwrap();
        let warnings = sessions(&run_dir)[1]["warnings"].clone();
        assert_eq!(warnings.as_array().unwrap().len(), expected.len(), "{warnings}");
        assert!(expected.iter().all(|words| warnings.to_string().contains(words)), "{warnings}");
    }
}

/// A corpus is recognised by its size and samples, or by all of it if configured; other modification times
/// are recorded.
#[test]
fn a_corpus_is_recognised_without_being_read_completely() {
    let directory = tempfile::tempdir().unwrap();
    let (corpus, run_dir) = (directory.path().join("corpus.txt"), directory.path().join("run"));
    let text: Vec<u8> = (0..1_500_000_u32).map(|index| b'a' + (index % 23) as u8).collect();
    let write = |changed: Option<usize>, time: u64| {
        let mut text = text.clone();
        changed.into_iter().for_each(|place| text[place] ^= 1);
        std::fs::write(&corpus, text).unwrap();
        let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(time);
        std::fs::File::options().write(true).open(&corpus).unwrap().set_modified(time).unwrap();
    };
    let paths = format!("data.paths=['{}']", corpus.display());
    for (full_hash, between) in [("data.full_hash=false", true), ("data.full_hash=true", false)] {
        let _ = std::fs::remove_dir_all(&run_dir);
        write(None, 1_000_000_000);
        assert!(one_step(&run_dir, GPT, &[&paths, full_hash]).interrupted);
        // In the first sample, between two samples, nowhere.
        for (place, goes_on) in [(Some(1), false), (Some(20_000), between), (None, true)] {
            write(place, 1_000_000_001);
            let resumed = resume(&run_dir, GPT, &[&paths, full_hash]);
            assert_eq!(resumed.is_ok(), goes_on, "{full_hash}, byte {place:?}");
            match resumed {
                Err(error) => assert!(error.to_string().contains("is not the text that"), "{error}"),
                Ok(_) if between => {
                    let warnings = sessions(&run_dir)[1]["warnings"].to_string();
                    assert!(warnings.contains("files of data.paths have another time"), "{warnings}");
                    break;
                }
                Ok(_) => {}
            }
        }
    }
}

#[test]
fn runs_that_cannot_resume_give_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let bare = directory.path().join("bare");
    full(&bare, GPT, &["checkpoint.minutes=0"]);
    let text = resume(&bare, GPT, &[]).unwrap_err().to_string();
    assert!(text.contains("holds a run that ended and no checkpoint"), "{text}");

    let run_dir = finished(directory.path());
    let again = train_in(&run_dir, config(GPT, &[]), DeviceChoice::Cpu).unwrap_err().to_string();
    assert!(again.contains("it holds a run already"), "{again}");
    let options = RunOptions { resume: true, ..RunOptions::default() };
    let text = run::train(config(GPT, &[]), options.clone()).unwrap_err().to_string();
    assert!(text.contains("--run-dir"), "{text}");
    let options = RunOptions { run_dir: Some(run_dir), device: DeviceChoice::Meta, ..options };
    let text = run::train(config(GPT, &[]), options).unwrap_err().to_string();
    assert!(text.contains("--device meta"), "{text}");
}

#[test]
fn files_of_killed_processes_are_removed_and_never_read() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path();
    one_step(run_dir, GPT, &["checkpoint.every=1"]);
    // A complete directory under a temporary name is not a checkpoint.
    let temporary = run_dir.join("checkpoints/.step-000005.tmp-1");
    copy(&run_dir.join("checkpoints/step-000001"), &temporary);
    std::fs::create_dir(run_dir.join("checkpoints/.step-000004.tmp-2")).unwrap();
    let mut file = std::fs::OpenOptions::new().append(true).open(run_dir.join("metrics.jsonl")).unwrap();
    std::io::Write::write_all(&mut file, b"{\"step\":2,\"loss\":1.0}\n{\"step\":3,\"lo").unwrap();
    let report = resume(run_dir, GPT, &["checkpoint.every=1", WAIT]).unwrap();
    assert_eq!(report.summary.more["resumed_after_step"], 1);
    assert_eq!(steps(run_dir), [5, 6]);
    assert_eq!(std::fs::read_dir(run_dir.join("checkpoints")).unwrap().count(), 2);
    assert_eq!(metrics(run_dir).iter().map(|(step, _)| *step).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn an_unwritable_last_checkpoint_fails_the_run() {
    for (step, fails) in [(4, false), (6, true)] {
        let directory = tempfile::tempdir().unwrap();
        let run_dir = directory.path().join("run");
        std::fs::create_dir_all(run_dir.join("checkpoints")).unwrap();
        // A file has the name of the writer's directory.
        let name = format!("checkpoints/.step-{step:06}.tmp-{}", std::process::id());
        std::fs::write(run_dir.join(&name), "").unwrap();
        let ended = train_in(&run_dir, config(GPT, &["checkpoint.every=2", WAIT]), DeviceChoice::Cpu);
        match ended {
            Ok(_) => assert!(!fails),
            Err(error) => {
                let text = error.to_string();
                assert!(fails && error.exit_status() == 1, "{text}");
                assert!(text.contains(&run_dir.join(&name).display().to_string()), "{text}");
            }
        }
        let left: Vec<u64> = [2, 4, 6].into_iter().filter(|there| *there != step).collect();
        assert_eq!(steps(&run_dir), left);
        // The training itself was complete.
        assert!(run_dir.join("summary.json").exists());
        assert_eq!(metrics(&run_dir).len(), 6);
    }
}
