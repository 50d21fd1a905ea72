//! Pipelines on the command line: the picture of a schedule, and the benchmark of all of them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests, a panic is the report of a failure")]

mod common;

use std::path::Path;
use std::process::{Command, Output};

use common::jobs::{text, workplace};

const SCHEDULES: [&str; 4] = ["gpipe", "1f1b", "interleaved", "zero-bubble"];

fn plimsoll(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(common::program());
    command.current_dir(directory).env("CUDA_VISIBLE_DEVICES", "").args(arguments);
    for variable in ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_ID", "PLIMSOLL_ALLOC_CONF"] {
        command.env_remove(variable);
    }
    command.output().unwrap()
}

#[test]
fn a_schedule_has_a_picture() {
    let directory = workplace();
    for schedule in SCHEDULES {
        let set = format!("parallel.schedule={schedule}");
        let sets = ["--set", "parallel.pipeline=2", "--set", "model.layers=4", "--set", &set];
        let arguments = [&["plan", "run.toml", "--schedule", "--svg", "picture.svg"], &sets[..]].concat();
        let output = plimsoll(directory.path(), &arguments);
        let said = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(said.starts_with(&format!("{schedule}: 2 ranks")), "{said}");
        for rank in 0..2 {
            let row = said.lines().find(|line| line.starts_with(&format!("rank {rank}"))).unwrap();
            assert!(row.contains("F0") && row.contains("F3") && row.contains("B3"), "{row}");
        }
        // Every stage has its layers and what it holds.
        let stages = if schedule == "interleaved" { 4 } else { 2 };
        let of = |line: &&str| line.split_whitespace().next().is_some_and(|word| word.parse::<u32>().is_ok());
        assert_eq!(said.lines().filter(of).count(), stages, "{said}");
        let picture = std::fs::read_to_string(directory.path().join("picture.svg")).unwrap();
        assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
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
        "--micro-batch=1",
        "--micro-batches=4",
        "--steps=1",
        "--warm-up=1",
        "--set=model.width=32",
        "--set=model.context=32",
        "--alone",
        "--json",
    ];
    let output = plimsoll(directory.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let lines = text(&output.stdout);
    let runs: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
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
