//! Checkpoints of processes that are killed at any moment, terminated, resumed and sampled from.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests, a panic is the report of a failure")]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use checkpoint::{Checkpoint, list};

/// A model so small that most of its time goes into checkpoints.
const TINY: &str = r#"
[model]
layers = 1
heads = 2
width = 16
context = 16
[data]
paths = ["corpus.txt"]
[train]
steps = 100
micro_batch_size = 1
global_batch_size = 4
validation_micro_batches = 1
[optim]
warmup_steps = 2
[checkpoint]
every = 1
"#;

struct Workplace(tempfile::TempDir);

impl Workplace {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let line = "The load line of a ship says how much she may carry, and in which waters.\n";
        std::fs::write(directory.path().join("corpus.txt"), line.repeat(100)).unwrap();
        std::fs::write(directory.path().join("run.toml"), TINY).unwrap();
        Workplace(directory)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn plimsoll(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(common::program());
        command.current_dir(self.0.path()).args(arguments).stdin(Stdio::null());
        for variable in ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_ID", "PLIMSOLL_ALLOC_CONF"] {
            command.env_remove(variable);
        }
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.plimsoll(arguments).output().unwrap()
    }

    fn start(&self, arguments: &[&str]) -> Child {
        self.plimsoll(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    fn summary(&self, run_dir: &str) -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(self.path(run_dir).join("summary.json")).unwrap()).unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeeded(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

/// Waits until a run has done `step` steps.
fn await_step(run_dir: &Path, step: u64) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while list(run_dir).unwrap().last().is_none_or(|(newest, _)| *newest < step) {
        assert!(Instant::now() < deadline, "no checkpoint of step {step}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns whether a checkpoint was being written or deleted.
fn has_temporary(run_dir: &Path) -> bool {
    let entries = std::fs::read_dir(run_dir.join("checkpoints")).into_iter().flatten();
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with('.'))
}

/// Counts of kills.
#[derive(Default)]
struct Kills {
    /// All kills.
    all: u64,
    /// Kills during the writing or deletion of a checkpoint.
    while_writing: u64,
}

impl Kills {
    /// Kills processes of one run at random moments until `most` kills or the end of the run, which it then
    /// awaits.
    fn of_run(&mut self, workplace: &Workplace, run_dir: &str, most: u64, random: &mut u64) {
        let path = workplace.path(run_dir);
        let line = ["train", "run.toml", "--run-dir", run_dir, "--resume"];
        let (mut newest, mut kept) = (0, 0);
        while self.all < most {
            let grid = ["parallel.data=1", "parallel.data=2", "parallel.data=4"][self.all as usize % 3];
            let mut child = workplace.start(&[&line[..], &["--set", grid]].concat());
            // Knuth's MMIX generator, whose high bits are the random ones.
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            std::thread::sleep(Duration::from_millis(5 + (*random >> 33) % 100));
            child.kill().unwrap();
            let status = child.wait().unwrap();
            if status.code().is_some() {
                assert!(status.success(), "{run_dir}: it ended by itself, with {status}");
                break;
            }
            self.all += 1;
            self.while_writing += u64::from(has_temporary(&path));
            let complete = list(&path).unwrap();
            for (step, checkpoint) in &complete {
                assert_eq!(Checkpoint::open(checkpoint).unwrap().step(), *step);
            }
            let now = complete.last().map_or(0, |(step, _)| *step);
            assert!(now >= newest, "{run_dir}: step {newest} was lost, {now} is there");
            assert!(complete.len() >= kept, "{run_dir}: {complete:?}");
            (newest, kept) = (now, complete.len().min(2));
        }
        succeeded(&workplace.run(&line));
        assert_eq!(
            std::fs::read_dir(path.join("checkpoints")).unwrap().count(),
            2,
            "temporaries are removed"
        );
        let entries = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name());
        let hidden: Vec<_> = entries.filter(|name| name.to_string_lossy().starts_with('.')).collect();
        assert!(hidden.is_empty(), "{hidden:?}");
    }
}

#[test]
fn a_hundred_kills_lose_no_checkpoint_and_change_no_bit() {
    let workplace = Workplace::new();
    succeeded(&workplace.run(&["train", "run.toml", "--run-dir", "whole", "--set", "checkpoint.every=0"]));
    let whole = workplace.summary("whole");
    let half = |name: &str, mut random: u64| {
        let mut kills = Kills::default();
        for run in 0.. {
            let run_dir = format!("{name}{run}");
            kills.of_run(&workplace, &run_dir, 50, &mut random);
            let summary = workplace.summary(&run_dir);
            assert_eq!(summary["weights_sha256"], whole["weights_sha256"]);
            assert_eq!(summary["losses"], whole["losses"]);
            let lines = std::fs::read_to_string(workplace.path(&run_dir).join("metrics.jsonl")).unwrap();
            assert_eq!(lines.lines().count(), whole["losses"].as_array().unwrap().len());
            if kills.all == 50 {
                break;
            }
        }
        kills.while_writing
    };
    let while_writing = std::thread::scope(|scope| {
        let other = scope.spawn(|| half("a", 1));
        half("b", 2) + other.join().unwrap()
    });
    assert!(while_writing >= 20, "{while_writing} of a hundred kills came while something was written");
}

#[test]
fn a_terminated_run_saves_its_last_step_and_resumes_without_a_configuration() {
    let workplace = Workplace::new();
    let long = ["--set", "train.steps=2000", "--set", "checkpoint.every=500", "--set", "parallel.data=2"];
    let start = |run_dir: &str| {
        let arguments = [&["train", "run.toml", "--run-dir", run_dir], &long[..]].concat();
        workplace.start(&arguments)
    };
    let mut child = start("out");
    let metrics = workplace.path("out/metrics.jsonl");
    while std::fs::read_to_string(&metrics).map_or(0, |lines| lines.lines().count()) < 20 {
        assert!(child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(2));
    }
    let terminated = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(terminated.success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let stopped = workplace.summary("out");
    assert_eq!(stopped["interrupted"], true);
    let newest = list(&workplace.path("out")).unwrap().pop().unwrap().0;
    assert_eq!(stopped["steps"].as_u64(), Some(newest));

    let output = workplace.run(&["train", "--run-dir", "out", "--resume", "--set", "parallel.data=1"]);
    succeeded(&output);
    let said = text(&output.stderr);
    assert!(said.contains(&format!("going on after step {newest}")), "{said}");
    let mut whole = start("whole");
    assert!(whole.wait().unwrap().success());
    let (resumed, whole) = (workplace.summary("out"), workplace.summary("whole"));
    assert_eq!(resumed["interrupted"], false);
    assert_eq!(resumed["weights_sha256"], whole["weights_sha256"]);
    assert_eq!(resumed["losses"], whole["losses"]);
    assert_eq!(resumed["validation_loss"], whole["validation_loss"]);
}

#[test]
fn resuming_from_the_command_line() {
    let workplace = Workplace::new();
    let refused = |arguments: &[&str], expected: &str| {
        let output = workplace.run(arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
    };
    refused(&["train", "run.toml", "--resume"], "--run-dir");
    refused(&["train", "--run-dir", "out", "--resume"], "out/config.toml");
    // The same command starts a run and continues it, as a requeued job needs.
    let line = ["train", "run.toml", "--run-dir", "out", "--resume"];
    let first = workplace.run(&line);
    succeeded(&first);
    let said = text(&first.stderr);
    assert!(said.contains("there is no checkpoint in out: starting from the beginning"), "{said}");
    let second = workplace.run(&line);
    succeeded(&second);
    assert!(text(&second.stderr).contains("going on after step 100"), "{}", text(&second.stderr));
    refused(
        &[&line[..], &["--set", "model.width=32"]].concat(),
        "model.width cannot change when a run goes on: 32 here, 16",
    );
    let state = workplace.path("out/checkpoints/step-000100/state.safetensors");
    std::fs::write(&state, &std::fs::read(&state).unwrap()[1..]).unwrap();
    refused(&line, "out/checkpoints/step-000100/state.safetensors: it is truncated");
    refused(&line, "step-000099 is intact: delete out/checkpoints/step-000100");
}

#[test]
fn one_process_at_a_time_trains_in_a_directory() {
    let workplace = Workplace::new();
    let line = ["train", "run.toml", "--run-dir", "out", "--resume", "--set", "train.steps=100000"];
    let mut child = workplace.start(&line);
    await_step(&workplace.path("out"), 2);
    let output = workplace.run(&line);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("another process is training there"), "{}", text(&output.stderr));
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn text_is_sampled_from_a_run() {
    let workplace = Workplace::new();
    let set = ["--set", "train.steps=6", "--set", "checkpoint.every=3"];
    succeeded(&workplace.run(&[&["train", "run.toml", "--run-dir", "out"], &set[..]].concat()));
    let sample = |more: &[&str]| workplace.run(&[&["sample", "out"], more].concat());
    let said = |more: &[&str]| {
        let output = sample(more);
        succeeded(&output);
        output.stdout
    };
    let prompt = ["--prompt", "The load é", "--tokens", "40"];
    let first = said(&prompt);
    let printed = text(&first);
    assert!(printed.starts_with("The load é") && printed.ends_with('\n'), "{printed}");
    assert!(first.len() > "The load é".len() + 30);
    assert_eq!(first, said(&prompt), "the same every time");
    assert_ne!(first, said(&[&prompt[..], &["--seed", "2"]].concat()));
    assert_eq!(
        said(&[&prompt[..], &["--temperature", "0"]].concat()),
        said(&[&prompt[..], &["--temperature", "0", "--seed", "2"]].concat())
    );
    assert_eq!(text(&said(&["--prompt", "x", "--tokens", "0"])), "x\n");

    let refused = |arguments: &[&str], expected: &str| {
        let output = workplace.run(arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(expected) && output.stdout.is_empty(), "{arguments:?}: {error}");
    };
    refused(&["sample", "out", "--prompt", ""], "--prompt");
    refused(&["sample", "out", "--temperature=-1"], "--temperature -1");
    refused(&["sample", "missing"], "missing/config.toml");
    let numbers = ["--set", "data.kind=synthetic", "--set", "model.kind=mlp"];
    succeeded(&workplace.run(&[&["train", "run.toml", "--run-dir", "mlp"], &set[..], &numbers[..]].concat()));
    refused(&["sample", "mlp"], "mlp: it trained no model of text");
    succeeded(&workplace.run(&["train", "run.toml", "--run-dir", "bare", "--set", "checkpoint.every=0"]));
    refused(&["sample", "bare"], "bare: it holds no checkpoint");
}
