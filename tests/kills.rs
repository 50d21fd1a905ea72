//! Tests of checkpoints of processes that are killed at any moment, terminated, resumed and sampled.

mod killed;
mod sampled;

use crate::common;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use checkpoint::{Checkpoint, list};
use killed::Killed;
use system::fail_point;

/// Configuration of a model so small that checkpoints take most of its time.
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
[parallel]
lanes = 4
[checkpoint]
every = 1
wait = true
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
        for variable in common::jobs::FOREIGN {
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

/// Waits until a run has completed `step` steps.
fn await_step(run_dir: &Path, step: u64) {
    let deadline = Instant::now() + Duration::from_secs(600);
    while list(run_dir).unwrap().last().is_none_or(|(newest, _)| *newest < step) {
        assert!(Instant::now() < deadline, "no checkpoint of step {step}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Grids that write each checkpoint as one file.
const WHOLE: [&[&str]; 3] = [&["parallel.data=1"], &["parallel.data=2"], &["parallel.data=4"]];
/// Grids on which each rank writes a file.
const SHARDED: [&[&str]; 2] =
    [&["parallel.data=2", "parallel.zero_stage=1"], &["parallel.data=4", "parallel.zero_stage=1"]];

/// Grids whose ranks also hold shards of gradients or weights.
const SHARDS: [&[&str]; 4] = [
    &["parallel.data=4", "parallel.zero_stage=3"],
    &["parallel.data=3", "parallel.zero_stage=2"],
    &["parallel.data=4", "parallel.zero_stage=3", "parallel.shard=2"],
    &["parallel.data=2", "parallel.zero_stage=3", "parallel.prefetch=0"],
];

/// Points of the program at which processes are killed, with the minimum number of times that a run reaches
/// each.
const POINTS: [(&str, u64); 8] = [
    ("checkpoint directory made", 2),
    ("checkpoint piece written", 2),
    ("checkpoint state written", 2),
    ("checkpoint manifest written", 2),
    ("checkpoint complete", 2),
    ("checkpoint published", 2),
    ("checkpoint renamed to be deleted", 1),
    ("output complete", 2),
];

/// Points reached while a checkpoint of several files is written, with the minimum number of times for each.
const POINTS_OF_FILES: [(&str, u64); 9] = [
    ("checkpoint directory made", 3),
    ("checkpoint piece written", 4),
    ("checkpoint state written", 4),
    ("checkpoint file reported", 4),
    ("checkpoint index written", 2),
    ("checkpoint manifest written", 2),
    ("checkpoint complete", 2),
    ("checkpoint published", 2),
    ("checkpoint renamed to be deleted", 1),
];

fn whole_run(workplace: &Workplace) -> serde_json::Value {
    succeeded(&workplace.run(&["train", "run.toml", "--run-dir", "whole", "--set", "checkpoint.every=0"]));
    workplace.summary("whole")
}

#[test]
fn a_kill_at_any_point_of_a_checkpoint_loses_none_and_changes_no_bit() {
    let workplace = Workplace::new();
    let whole = whole_run(&workplace);
    for (run_dir, grids, points) in
        [("out", &WHOLE[..], &POINTS[..]), ("sharded", &SHARDED, &POINTS_OF_FILES)]
    {
        let mut killed = Killed::new(&workplace, run_dir, grids);
        for (point, most) in points {
            for count in 1..=*most {
                assert!(killed.at(point, count), "{point} was reached less than {count} times");
            }
        }
        killed.ends_as(&whole);
    }
}

/// Kills a run while each of its files in turn is complete under its temporary name.
#[test]
fn temporary_files_of_killed_runs_are_removed() {
    let workplace = Workplace::new();
    let whole = whole_run(&workplace);
    let mut killed = Killed::new(&workplace, "out", &WHOLE);
    let mut left = Vec::new();
    for count in 1.. {
        if !killed.at("output complete", count) {
            break;
        }
        let traces = std::fs::read_dir(workplace.path("out/traces")).into_iter().flatten();
        left.extend(traces.map(|entry| entry.unwrap().file_name().into_string().unwrap()));
    }
    assert!(left.iter().any(|name| name.starts_with(".rank-")), "{left:?}");
    killed.ends_as(&whole);
}

/// Kills runs at random moments for `PLIMSOLL_LONG_TESTS` seconds.
#[test]
fn kills_at_random_moments_lose_no_checkpoint_and_change_no_bit() {
    let workplace = Workplace::new();
    let whole = whole_run(&workplace);
    let mut random = common::random::Random::new(1);
    let budget = common::random::Budget::of_fuzzer();
    for run in 0.. {
        let run_dir = format!("out{run}");
        let all = [&SHARDS[..], &SHARDED, &WHOLE].concat();
        let grids = [&all[3 * run % all.len()..], &all].concat();
        let mut killed = Killed::new(&workplace, &run_dir, &grids);
        while budget.allows(killed.kills) {
            let child = killed.command().spawn().unwrap();
            std::thread::sleep(Duration::from_millis(5 + random.below(400) as u64));
            if !killed.kill(child) {
                break;
            }
        }
        killed.ends_as(&whole);
        if !budget.allows(run + 1) {
            break;
        }
    }
}

#[test]
fn a_kill_during_the_only_checkpoint_leaves_a_run_that_starts_again() {
    let workplace = Workplace::new();
    let line = ["train", "run.toml", "--run-dir", "out", "--resume"];
    let line = [&line[..], &["--set", "checkpoint.every=0", "--set", "train.steps=5"]].concat();
    let mut command = workplace.plimsoll(&line);
    let reached = workplace.path("reached");
    command.env(fail_point::VARIABLE, format!("checkpoint state written:1:{}", reached.display()));
    let mut child = command.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    while !reached.exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before its checkpoint");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Gives other threads time to write the results.
    std::thread::sleep(Duration::from_millis(300));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(list(&workplace.path("out")).unwrap().is_empty());
    succeeded(&workplace.run(&line));
    assert_eq!(workplace.summary("out")["steps"], 5);
}

/// Kills one of two processes while it writes its file. There must be no partial checkpoint, and the previous
/// one is resumed on another grid.
#[test]
fn a_killed_rank_of_a_job_leaves_no_partial_checkpoint() {
    let workplace = Workplace::new();
    let whole = whole_run(&workplace);
    // A file's arrays are one piece, and the losses in rank 0's file another, so its third checkpoint
    // contains the fifth piece.
    let table = [(1, 3, SHARDED[0]), (0, 5, SHARDED[0]), (1, 3, SHARDS[3])];
    for (number, (rank, pieces, grid)) in table.into_iter().enumerate() {
        let run_dir = format!("job{number}");
        let out = workplace.path(&run_dir);
        let reached = workplace.path(&format!("{run_dir}-reached"));
        let script = format!(
            "[ \"$RANK\" != {rank} ] || export {}='checkpoint piece written:{pieces}:{}'; exec \"$@\"",
            fail_point::VARIABLE,
            reached.display()
        );
        let mut command = common::jobs::over_tcp(&workplace.path(""), 2);
        command.args(["bash", "-c", &script, "bash"]).arg(common::program());
        command.args(["train", "run.toml", "--run-dir", &run_dir]);
        for set in grid {
            command.args(["--set", set]);
        }
        let mut job = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while !reached.exists() {
            assert!(job.try_wait().unwrap().is_none(), "it ended before its third checkpoint");
            std::thread::sleep(Duration::from_millis(5));
        }
        let status = std::fs::read_to_string(out.join(format!("logs/rank-{rank}.status"))).unwrap();
        let process = status.lines().find_map(|line| line.strip_prefix("pid = ")).unwrap().trim();
        assert!(Command::new("kill").args(["-KILL", process]).status().unwrap().success());
        assert!(!job.wait().unwrap().success());
        let complete = list(&out).unwrap();
        assert_eq!(complete.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [1, 2]);
        for (_, checkpoint) in complete {
            Checkpoint::open(&checkpoint).unwrap();
        }
        Killed::new(&workplace, &run_dir, &WHOLE).ends_as(&whole);
    }
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
    assert_eq!(child.wait().unwrap().code(), Some(143));
    let stopped = workplace.summary("out");
    assert_eq!(stopped["interrupted"], true);
    let newest = list(&workplace.path("out")).unwrap().pop().unwrap().0;
    assert_eq!(stopped["steps"].as_u64(), Some(newest));

    let output = workplace.run(&["train", "--run-dir", "out", "--resume", "--set", "parallel.data=1"]);
    succeeded(&output);
    let message = text(&output.stderr);
    assert!(message.contains(&format!("resuming after step {newest}")), "{message}");
    let mut whole = start("whole");
    assert!(whole.wait().unwrap().success());
    let resumed = workplace.summary("out");
    let whole = workplace.summary("whole");
    assert_eq!(resumed["interrupted"], false);
    assert_eq!(resumed["weights_sha256"], whole["weights_sha256"]);
    assert_eq!(resumed["losses"], whole["losses"]);
    assert_eq!(resumed["validation_loss"], whole["validation_loss"]);
}

/// Starts a run that is paused at `point`, calls `meanwhile` with its process and the path of its standard
/// error, and lets it continue.
fn held(
    workplace: &Workplace,
    arguments: &[&str],
    point: &str,
    meanwhile: impl FnOnce(&Child, &Path),
) -> Output {
    let reached = workplace.path("reached");
    let errors = workplace.path("stderr");
    let hold = format!("{point}:1:{}", reached.display());
    let mut command = workplace.plimsoll(arguments);
    command.env(fail_point::VARIABLE, hold).stdout(Stdio::null());
    let mut child = command.stderr(std::fs::File::create(&errors).unwrap()).spawn().unwrap();
    while !reached.exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before {point}");
        std::thread::sleep(Duration::from_millis(5));
    }
    meanwhile(&child, &errors);
    std::fs::remove_file(&reached).unwrap();
    let output = child.wait_with_output().unwrap();
    Output { stderr: std::fs::read(errors).unwrap(), ..output }
}

/// Asks a process to stop, and waits until it announces that it will.
fn terminate(child: &Child, errors: &Path) {
    let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    while !std::fs::read_to_string(errors).unwrap().contains("stopping after this step") {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_request_to_stop_during_the_start_ends_a_run_before_its_first_step() {
    let workplace = Workplace::new();
    for (run_dir, ranks) in [("one", "parallel.data=1"), ("two", "parallel.data=2")] {
        let line = ["train", "run.toml", "--run-dir", run_dir, "--resume", "--set", ranks];
        let output = held(&workplace, &line, "training about to begin", terminate);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.ends_with("plimsoll: stopped before the first step\n"), "{message}");
        assert_eq!(std::fs::read(workplace.path(run_dir).join("metrics.jsonl")).unwrap(), b"");
        // A resumed run keeps the steps that it has completed.
        let steps = [&line[..], &["--set", "train.steps=5"]].concat();
        std::fs::remove_file(workplace.path(run_dir).join("summary.json")).unwrap();
        succeeded(&workplace.run(&steps));
        let before = workplace.summary(run_dir);
        assert!(before["tokens_per_second"].as_f64().unwrap() > 0.0);
        let output = held(&workplace, &line, "training about to begin", terminate);
        assert_eq!(output.status.code(), Some(143), "{}", text(&output.stderr));
        assert_eq!(workplace.summary(run_dir), before);
        succeeded(&workplace.run(&line));
        assert_eq!(workplace.summary(run_dir)["steps"], 100);
    }
}

#[test]
fn a_corpus_that_is_cut_after_the_last_step_costs_no_result() {
    let workplace = Workplace::new();
    let line = ["train", "run.toml", "--run-dir", "out", "--set", "train.steps=5"];
    let output = held(&workplace, &line, "steps done", |_, _| {
        let corpus = std::fs::OpenOptions::new().write(true).open(workplace.path("corpus.txt")).unwrap();
        corpus.set_len(10).unwrap();
    });
    succeeded(&output);
    let message = text(&output.stderr);
    assert!(message.contains("corpus.txt was changed while it was read"), "{message}");
    assert_eq!(workplace.summary("out")["steps"], 5);
    assert_eq!(list(&workplace.path("out")).unwrap().pop().unwrap().0, 5);
}

#[test]
fn a_run_is_resumed_from_the_command_line() {
    let workplace = Workplace::new();
    let refused = |arguments: &[&str], expected: &str| {
        let output = workplace.run(arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
    };
    refused(&["train", "run.toml", "--resume"], "--run-dir");
    refused(&["train", "--run-dir", "out", "--resume"], "there is no run in out");
    // The same command starts a run and resumes it, as a requeued job needs.
    let line = ["train", "run.toml", "--run-dir", "out", "--resume"];
    let first = workplace.run(&line);
    succeeded(&first);
    let message = text(&first.stderr);
    assert!(message.contains("there is no checkpoint in out: starting from the beginning"), "{message}");
    let second = workplace.run(&line);
    succeeded(&second);
    let message = text(&second.stderr);
    assert!(message.contains("nothing is left to do: all 100 steps are done"), "{message}");
    refused(
        &[&line[..], &["--set", "model.width=32"]].concat(),
        "model.width cannot change when a run is resumed: 32 here, 16",
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
