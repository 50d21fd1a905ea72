//! Tests of pages of real runs and plans: `plimsoll report` and `plimsoll plan --html`.

use std::path::Path;
use std::process::{Command, Output};

use crate::common::runs::{GPT, config, train_in};
use crate::common::{program, root};
use telemetry::units::grouped;
use worker::DeviceChoice;

fn plimsoll(arguments: &[&str]) -> Output {
    Command::new(program()).args(arguments).current_dir(root()).output().unwrap()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn the_page_of_a_run_shows_its_plan() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("pipe");
    let overrides =
        ["parallel.pipeline=2", "memory.recompute=block", "train.steps=3", "train.validate_every=2"];
    let report = train_in(&run_dir, config(GPT, &overrides), DeviceChoice::Cpu).unwrap();
    let output = plimsoll(&["report", run_dir.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let path = run_dir.join("report.html");
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), path.to_str().unwrap());
    let page = read(&path);
    for rank in &report.ranks {
        let peak = rank.get(telemetry::Statistic::PeakReservedBytes);
        assert!(page.contains(&format!("{}<br>", grouped(peak))), "{peak}");
    }
    for text in [
        "<title>pipe · Plimsoll</title>",
        "Every rank used what was planned, to the byte, in every step.",
        "measured and planned are the same",
        "2 ranks in a pipeline",
        "id=\"schedule\"",
        "id=\"states\"",
        ">between steps</text>",
        ">optimizer</text>",
        "recompute = &quot;block&quot;",
        "step 3",
        &format!("{}…", &report.summary.weights_sha256[..8]),
    ] {
        assert!(page.contains(text), "{text}");
    }
    // An unfinished run has no summary.
    std::fs::remove_file(run_dir.join("summary.json")).unwrap();
    let elsewhere = directory.path().join("page.html");
    let second = plimsoll(&["report", run_dir.to_str().unwrap(), "--output", elsewhere.to_str().unwrap()]);
    assert!(second.status.success());
    assert!(read(&elsewhere).contains("This run has no summary"));
}

#[test]
fn the_page_of_a_plan_needs_no_run() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("small.toml");
    let page = directory.path().join("plan.html");
    std::fs::write(&file, GPT.replace("paths = [", &format!("base = '{}'\npaths = [", root().display())))
        .unwrap();
    let arguments = [
        "plan",
        file.to_str().unwrap(),
        "--device",
        "cpu",
        "--html",
        page.to_str().unwrap(),
        "--set",
        "parallel.data=2",
    ];
    let output = plimsoll(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = read(&page);
    for text in ["<title>small · Plimsoll</title>", "Planned for ", ">ranks 0–1</label>", "2 ranks"] {
        assert!(page.contains(text), "{text}");
    }
    assert!(!page.contains("id=\"history\""));
}

#[test]
fn directories_without_a_run_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let empty = directory.path().to_str().unwrap();
    let broken = directory.path().join("broken");
    std::fs::create_dir(&broken).unwrap();
    std::fs::write(broken.join("config.toml"), "[model]\nlayers = 0\n").unwrap();
    for (run_dir, message) in [(empty, "there is no run in"), (broken.to_str().unwrap(), "model.layers = 0")]
    {
        let refused = plimsoll(&["report", run_dir]);
        assert_eq!(refused.status.code(), Some(2));
        let text = String::from_utf8(refused.stderr).unwrap();
        assert!(text.contains(message) && text.trim_end().lines().count() == 1, "{text}");
    }
}
