//! Tests of pipelines on the command line: pictures of the schedule, the benchmark of all schedules, and
//! partitions by measured times.

use std::path::Path;
use std::process::{Command, Output};

use crate::common;
use crate::common::devices::{gpu, own_gpus};
use crate::common::jobs::{summary, text, workplace};

const SCHEDULES: [&str; 4] = ["gpipe", "1f1b", "interleaved", "zero-bubble"];

fn plimsoll(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = clean(directory, arguments);
    command.env("CUDA_VISIBLE_DEVICES", "").output().unwrap()
}

/// Creates a command for the program without environment variables of launchers and users.
fn clean(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(common::program());
    command.current_dir(directory).args(arguments);
    for variable in common::jobs::FOREIGN {
        command.env_remove(variable);
    }
    command
}

#[test]
fn schedules_are_drawn() {
    let directory = workplace();
    for schedule in SCHEDULES {
        let set = format!("parallel.schedule={schedule}");
        let sets = ["--set", "parallel.pipeline=2", "--set", "model.layers=4", "--set", &set];
        let arguments = [&["plan", "run.toml", "--schedule", "--svg", "picture.svg"], &sets[..]].concat();
        let output = plimsoll(directory.path(), &arguments);
        let message = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(message.starts_with(&format!("{schedule}: 2 ranks")), "{message}");
        for rank in 0..2 {
            let row = message.lines().find(|line| line.starts_with(&format!("rank {rank}"))).unwrap();
            assert!(row.contains("F0") && row.contains("F3") && row.contains("B3"), "{row}");
        }
        // Every stage is listed with its layers and memory.
        let stages = if schedule == "interleaved" { 4 } else { 2 };
        let is_rank_row =
            |line: &&str| line.split_whitespace().next().is_some_and(|word| word.parse::<u32>().is_ok());
        assert_eq!(message.lines().filter(is_rank_row).count(), stages, "{message}");
        let picture = std::fs::read_to_string(directory.path().join("picture.svg")).unwrap();
        assert!(picture.contains("<svg") && picture.trim_end().ends_with("</svg>"));
    }
}

#[test]
fn the_benchmark_measures_every_schedule() {
    let directory = workplace();
    let arguments = [
        "bench",
        "pipeline",
        "--device=cpu",
        "--model=small",
        "--micro-batch-size=1",
        "--micro-batches=4",
        "--steps=1",
        "--warm-up=1",
        "--set=model.width=32",
        "--set=model.context=32",
        "--alone",
        "--json",
        "--profile=times.toml",
    ];
    let output = plimsoll(directory.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let lines = text(&output.stdout);
    let runs: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(directory.path().join("times.toml").exists());
    // Partitions with and without times, for two stages and, interleaved, for four.
    let message = text(&output.stderr);
    let partitions = message.lines().filter_map(|line| line.strip_prefix("layers of each stage: "));
    let partitions: Vec<_> = partitions.map(|line| line.split(", ").count() - 2).collect();
    assert_eq!(partitions, [2, 2, 4, 4], "{message}");
    // These settings conflict with a partition by measured times.
    for key in ["parallel.partition=smallest", "parallel.profile=times.toml"] {
        let set = format!("--set={key}");
        let message =
            refused(directory.path(), &["bench", "pipeline", "--device=cpu", "--profile=new.toml", &set]);
        let key = key.split_once('=').unwrap().0;
        assert!(message.contains(&format!("--set {key}: ")) && message.contains("--profile"), "{message}");
        assert!(!directory.path().join("new.toml").exists());
    }
    let names: Vec<_> = runs.iter().map(|run| run["schedule"].as_str().unwrap()).collect();
    assert_eq!(names[1..], SCHEDULES);
    for run in &runs {
        assert_eq!(run["loss"], runs[0]["loss"], "{run}");
        let ranks = run["ranks"].as_array().unwrap();
        assert_eq!(ranks.len(), if run == &runs[0] { 1 } else { 2 });
        for rank in ranks {
            let part = |key: &str| rank[key].as_f64().unwrap();
            assert!((0.0..1.0).contains(&part("idle")), "{run}");
            assert!((0.0..1.0).contains(&part("simulated_idle")), "{run}");
            assert!(part("busy_ms") > 0.0 && part("peak_allocated_bytes") > 0.0, "{run}");
        }
        assert!(run["passes_ms"].as_f64().unwrap() > 0.0 && run["simulated_ms"].as_f64().unwrap() > 0.0);
    }
}

/// Settings of two ranks with four layers and a large head.
const DIVIDED: [&str; 5] = [
    "--set=parallel.pipeline=2",
    "--set=model.layers=4",
    "--set=model.vocabulary=2000",
    "--set=train.steps=2",
    "--set=parallel.lanes=2",
];

/// Runs a command that must succeed. Returns its standard output.
fn done(directory: &Path, arguments: &[&str]) -> String {
    let output = plimsoll(directory, arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Runs a command that must be refused. Returns its single sentence.
fn refused(directory: &Path, arguments: &[&str]) -> String {
    let output = plimsoll(directory, arguments);
    let message = text(&output.stderr);
    assert_eq!((output.status.code(), message.lines().count()), (Some(2), 1), "{arguments:?}: {message}");
    message
}

#[test]
fn plans_and_runs_use_the_same_measured_times() {
    let directory = workplace();
    let directory = directory.path();
    let plan = [&["plan", "run.toml", "--device=cpu"], &DIVIDED[..]].concat();
    let take = [&plan[..], &["--profile", "times.toml"]].concat();
    let message = done(directory, &take);
    assert!(
        message.contains("milliseconds on ")
            && message.contains("layers of each stage: ")
            && message.contains("the fastest by the times in "),
        "{message}"
    );
    assert!(
        message.contains(": --set parallel.profile=/") && message.trim_end().ends_with("/times.toml"),
        "{message}"
    );
    // An existing file is unchanged.
    assert!(refused(directory, &take).contains("--profile times.toml: it exists: --force replaces it"));
    // The first layer is changed to take longer than all others together.
    let file = directory.join("times.toml");
    let mut times: toml::Table = std::fs::read_to_string(&file).unwrap().parse().unwrap();
    let layers = times["layers"].as_array_mut().unwrap();
    assert_eq!(layers.iter().map(|layer| layer["count"].as_integer().unwrap()).sum::<i64>(), 4);
    layers[0]["forward"] = 1_000_000_000_000_i64.into();
    std::fs::write(&file, times.to_string()).unwrap();

    let by_times = "--set=parallel.profile=times.toml";
    let plan_of = |more: &[&str]| -> serde_json::Value {
        serde_json::from_str(&done(directory, &[&plan[..], &["--json"], more].concat())).unwrap()
    };
    let planned = plan_of(&[by_times]);
    assert_eq!(planned["pipeline"]["layers"], serde_json::json!([1, 3]));
    assert!(planned["pipeline"]["times"].as_str().unwrap().contains("times.toml"));
    assert_ne!(plan_of(&[])["pipeline"]["layers"], planned["pipeline"]["layers"]);
    let train = |run: &str, more: &[&str]| {
        let arguments = ["train", "run.toml", "--device=cpu", "--run-dir", run];
        let output = plimsoll(directory, &[&arguments, &DIVIDED[..], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        (summary(&directory.join(run)), text(&output.stderr) + &text(&output.stdout))
    };
    let (counted, _) = train("counted", &[]);
    let (timed, message) = train("timed", &[by_times, "--set=checkpoint.every=1"]);
    assert!(message.contains("layers of each stage: 1, 3, the fastest by the times in "), "{message}");
    assert_eq!(counted["weights_sha256"], timed["weights_sha256"]);
    for rank in 0..2 {
        for key in ["allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "peak_reserved_bytes"] {
            assert_eq!(timed["ranks"][rank][key], planned["ranks"][rank][key], "rank {rank}, {key}");
        }
    }
    // A resumed run reads its times again, and reports if the file is missing.
    let resume = ["train", "--device=cpu", "--run-dir", "timed", "--resume"];
    std::fs::rename(&file, directory.join("gone.toml")).unwrap();
    assert!(refused(directory, &resume).contains("times.toml cannot be read"));
    std::fs::rename(directory.join("gone.toml"), &file).unwrap();
    done(directory, &resume);
    // A model with other layers needs other times.
    let wide = "--set=model.width=64";
    let message = refused(directory, &[&plan[..], &[by_times, wide]].concat());
    assert!(message.contains("is of other layers: model.width is 64 here and 32 there"), "{message}");
    let message =
        done(directory, &[&plan[..], &[by_times, "--largest=layers", "--capacity=200MiB"]].concat());
    assert!(message.contains(" --set parallel.profile=)"), "{message}");
    // With one stage nothing is partitioned, but the file must still belong to this run.
    let one = "--set=parallel.pipeline=1";
    done(directory, &[&plan[..], &[by_times, one]].concat());
    let train = [&["train", "run.toml", "--device=cpu", "--run-dir", "one"], &DIVIDED[..]].concat();
    for (more, sentence) in [
        (&[by_times, wide][..], "is of other layers: model.width is 64 here and 32 there"),
        (&["--set=parallel.profile=gone.toml"], "gone.toml cannot be read"),
    ] {
        for arguments in [&plan, &train] {
            let message = refused(directory, &[&arguments[..], &[one], more].concat());
            assert!(message.contains(sentence), "{message}");
        }
        assert!(!directory.join("one").exists());
    }
    // A new measurement ignores the old file.
    let gone = ["--set=parallel.profile=gone.toml", "--profile=new.toml"];
    done(directory, &[&plan[..], &gone].concat());
}

#[test]
fn the_use_of_a_profile_is_printed_as_a_command() {
    let directory = workplace();
    let directory = directory.path();
    let plan = [&["plan", "run.toml", "--device=cpu"], &DIVIDED[..]].concat();
    let partitions =
        ["parallel.partition=fastest", "parallel.partition=smallest", "parallel.partition=[2, 2]"];
    for (number, partition) in partitions.iter().enumerate() {
        let file = format!("times{number}.toml");
        let plan = [&plan[..], &["--set", partition]].concat();
        let message = done(directory, &[&plan[..], &["--profile", &file]].concat());
        let (_, typed) = message.trim_end().rsplit_once("to partition by these times: ").unwrap();
        assert_eq!(typed.ends_with(" --set parallel.partition=fastest"), number > 0, "{message}");
        let typed: Vec<_> = typed.split(' ').collect();
        let planned = done(directory, &[&plan[..], &["--json"], &typed].concat());
        let planned: serde_json::Value = serde_json::from_str(&planned).unwrap();
        assert!(planned["pipeline"]["times"].as_str().unwrap().contains(&file), "{planned}");
    }
    let one = ["--set=parallel.pipeline=1", "--profile=one.toml"];
    let message = done(directory, &[&plan[..], &one].concat());
    assert!(message.contains("there is nothing to partition"), "{message}");
}

/// With a single GPU, the ranks of the pipeline share it.
#[test]
fn a_gpu_times_layers_and_the_run_equals_its_plan() {
    if !gpu() {
        return;
    }
    let directory = workplace();
    let half =
        ["--set=precision.compute=bf16", "--set=model.width=128", "--set=model.heads=4", "--device=cuda"];
    let shares: &[&str] = if own_gpus() < 2 { &["--set=parallel.ranks_per_device=2"] } else { &[] };
    let on_gpus = |arguments: &[&str]| {
        let arguments = [arguments, &DIVIDED, &half, shares].concat();
        let output = clean(directory.path(), &arguments).output().unwrap();
        let message = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{message}");
        message
    };
    let message = on_gpus(&["plan", "run.toml", "--profile", "times.toml"]);
    assert!(message.contains("the fastest by the times in "), "{message}");
    let times: toml::Table =
        std::fs::read_to_string(directory.path().join("times.toml")).unwrap().parse().unwrap();
    for layer in times["layers"].as_array().unwrap() {
        let nanoseconds = |key: &str| layer[key].as_integer().unwrap();
        // A kernel takes at least a microsecond, and none of these takes a second.
        for key in ["forward", "backward_input", "backward_weight", "update"] {
            assert!((1_000..1_000_000_000).contains(&nanoseconds(key)), "{key}: {times}");
        }
    }
    let by_times = "--set=parallel.profile=times.toml";
    let message = on_gpus(&["train", "run.toml", "--run-dir", "out", by_times]);
    assert!(message.contains("layers of each stage: ") && message.contains("by the times in "), "{message}");
    assert!(message.contains("Every rank used what was planned, to the byte."), "{message}");
}
