//! Tests of gradient-norm spikes: decisions and weights are the same on every grid, also after an
//! interruption.

use std::path::Path;

use crate::common::jobs::{self, Transport};
use crate::common::runs::{GPT, config};
use run::{Interrupt, RunError, RunOptions, TrainReport};
use serde_json::Value;
use worker::DeviceChoice;

/// Settings with a threshold so low that a run has some spikes.
const SPIKY: [&str; 5] = [
    "train.steps=30",
    "train.spike_deviations=0.7",
    "train.spike_window=12",
    "checkpoint.every=7",
    "checkpoint.wait=true",
];

const GRIDS: [&[&str]; 6] = [
    &[],
    &["parallel.data=2"],
    &["parallel.data=3"],
    &["parallel.data=2", "parallel.zero_stage=1"],
    &["parallel.data=2", "parallel.zero_stage=3"],
    &["parallel.pipeline=2"],
];

fn train(run_dir: &Path, sets: &[&str], options: RunOptions) -> Result<TrainReport, RunError> {
    let run_dir = Some(run_dir.to_owned());
    let options = RunOptions { device: DeviceChoice::Cpu, run_dir, quiet: true, ..options };
    run::train(config(GPT, &[&SPIKY[..], sets].concat()), options)
}

fn json(run_dir: &Path, name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(run_dir.join(name)).unwrap()).unwrap()
}

/// Returns a run's weights' hash, losses and spikes.
fn outcome(run_dir: &Path) -> (Value, Value, Value) {
    let summary = json(run_dir, "summary.json");
    (summary["weights_sha256"].clone(), summary["losses"].clone(), json(run_dir, "spikes.json"))
}

#[test]
fn decisions_and_weights_are_the_same_on_every_grid() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: String| directory.path().join(name);
    // A rewound run resumes a checkpoint, as tests of checkpoints do on all grids.
    for (action, grids) in [("skip", &GRIDS[..]), ("rewind", &[GRIDS[0], GRIDS[2], GRIDS[5]])] {
        let mut first = None;
        for (number, grid) in grids.iter().enumerate() {
            let run_dir = path(format!("{action}{number}"));
            let action = format!("train.on_spike={action}");
            train(&run_dir, &[&[action.as_str()], *grid].concat(), RunOptions::default()).unwrap();
            let outcome = outcome(&run_dir);
            let spikes = outcome.2.as_array().unwrap();
            assert!((1..30).contains(&spikes.len()), "{spikes:?}");
            assert_eq!(first.get_or_insert_with(|| outcome.clone()), &outcome, "{action}, {grid:?}");
        }
    }
}

/// Checks that a run that is interrupted every few steps continues with the same thresholds.
#[test]
fn an_interrupted_run_makes_the_same_decisions() {
    let directory = tempfile::tempdir().unwrap();
    let whole = directory.path().join("whole");
    let parts = directory.path().join("parts");
    let skip = ["train.on_spike=skip"];
    train(&whole, &skip, RunOptions::default()).unwrap();
    for (session, grid) in GRIDS.iter().cycle().enumerate() {
        let options = RunOptions { resume: true, interrupt: Interrupt::after(5), ..RunOptions::default() };
        let report = train(&parts, &[&skip[..], grid].concat(), options).unwrap();
        if report.summary.steps == 30 {
            break;
        }
        assert!(session < 20);
    }
    assert_eq!(outcome(&parts), outcome(&whole));
}

/// Checks that a run that knows in advance which samples to skip has the weights of the run that found them.
#[test]
fn a_rewound_run_is_one_without_the_samples() {
    let directory = tempfile::tempdir().unwrap();
    let found = directory.path().join("found");
    let knew = directory.path().join("knew");
    let rewind = ["train.on_spike=rewind"];
    train(&found, &rewind, RunOptions::default()).unwrap();
    let (hash, losses, spikes) = outcome(&found);
    let sessions = json(&found, "sessions.json");
    let mut endings: Vec<_> = sessions.as_array().unwrap().iter().map(|session| &session["ending"]).collect();
    assert_eq!(endings.len(), spikes.as_array().unwrap().len() + 1);
    assert!(endings.pop().unwrap() == "complete" && endings.iter().all(|ending| *ending == "rewound"));
    std::fs::create_dir(&knew).unwrap();
    std::fs::copy(found.join("spikes.json"), knew.join("spikes.json")).unwrap();
    train(&knew, &rewind, RunOptions { resume: true, ..RunOptions::default() }).unwrap();
    assert_eq!(outcome(&knew), (hash, losses, spikes));
    assert_eq!(json(&knew, "sessions.json").as_array().unwrap().len(), 1);
    let lines = std::fs::read_to_string(found.join("metrics.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), 30);
}

/// Checks that a job of processes ends at a spike, and goes back when its launcher starts it again.
#[test]
fn a_job_goes_back_when_it_is_started_again() {
    let run = |launched: Transport, ranks: usize| {
        let workplace = jobs::workplace();
        let sets = [&SPIKY[..], &["train.on_spike=rewind"]].concat();
        let mut starts = 0;
        let run_dir = workplace.path().join("out");
        loop {
            let output =
                jobs::train(launched, workplace.path(), ranks, &sets).arg("--resume").output().unwrap();
            let message = jobs::text(&output.stderr);
            starts += 1;
            match output.status.code() {
                Some(0) => return (starts, outcome(&run_dir)),
                Some(1) => assert!(message.contains("started again with --resume"), "{message}"),
                _ => panic!("{message}"),
            }
            assert!(starts < 40, "{message}");
        }
    };
    let threads = run(Transport::Threads, 1);
    let tcp = run(Transport::Tcp, 2);
    assert_eq!(threads.0, 1);
    assert_eq!(tcp.0, 1 + tcp.1.2.as_array().unwrap().len());
    assert_eq!(threads.1, tcp.1);
}

#[test]
fn a_run_stops_at_a_spike() {
    let directory = tempfile::tempdir().unwrap();
    let error = train(directory.path(), &["train.on_spike=stop"], RunOptions::default()).unwrap_err();
    let message = error.to_string();
    assert_eq!(error.exit_status(), 1);
    let summary = json(directory.path(), "summary.json");
    let step = summary["spike"]["step"].as_u64().unwrap();
    assert!(message.starts_with(&format!("step {step}: the gradient norm is ")), "{message}");
    assert!(message.contains(" standard deviations above the recent mean "), "{message}");
    assert!(message.contains("the last good checkpoint is "), "{message}");
    assert_eq!(json(directory.path(), "sessions.json")[0]["ending"], "spike");
    let newest = checkpoint::list(directory.path()).unwrap().pop().unwrap().0;
    assert!(newest < step, "{newest} {step}");
}
