//! Tests of how users observe runs: TensorBoard, Prometheus, `plimsoll runs`, and pages with users' text.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::python::python_with;
use crate::common::runs::{GPT, MLP, config};
use crate::common::{program, root};
use run::{Interrupt, RunOptions};
use serde_json::Value;
use worker::DeviceChoice;

/// Maximum time that a test waits for a run.
const PATIENCE: Duration = Duration::from_secs(120);

fn plimsoll(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(program()).args(arguments).current_dir(directory).output().unwrap()
}

fn message(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).join("")
}

fn train(run_dir: &Path, sets: &[&str], options: RunOptions) {
    let run_dir = Some(run_dir.to_owned());
    run::train(config(MLP, sets), RunOptions { device: DeviceChoice::Cpu, run_dir, quiet: true, ..options })
        .unwrap();
}

fn metrics(run_dir: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(run_dir.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Python script that prints the scalars of event files as JSON: values by step, for each tag.
const READ: &str = "
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
tags = events.Tags()['scalars']
print(json.dumps({tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in tags}))
";

#[test]
fn tensorboard_reads_the_scalars_of_a_resumed_run() {
    let Some(python) = python_with(&["tensorboard"]) else { return };
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let sets = ["train.steps=6", "telemetry.tensorboard=true", "checkpoint.every=2", "checkpoint.wait=true"];
    let validated = ["train.validate_every=3", "checkpoint.keep=9"];
    let sets = [&sets[..], &validated].concat();
    train(&run_dir, &sets, RunOptions { interrupt: Interrupt::after(5), ..RunOptions::default() });
    train(&run_dir, &sets, RunOptions { resume: true, step: Some(4), ..RunOptions::default() });
    let read = Command::new(&python).args(["-c", READ]).arg(run_dir.join("tensorboard")).output().unwrap();
    assert!(read.status.success(), "{}", message(&read));
    let scalars: Value = serde_json::from_slice(&read.stdout).unwrap();
    let lines = metrics(&run_dir);
    assert_eq!(lines.len(), 6);
    for (tag, key, scale) in [
        ("loss_metrics/global_avg_loss", "loss", 1.0),
        ("grad_norm", "gradient_norm", 1.0),
        ("lr", "learning_rate", 1.0),
        ("throughput(tps)", "tokens_per_second", 1.0),
        ("memory/max_active(GiB)", "step_peak_allocated_bytes", 1.0 / f64::from(1 << 30)),
        ("validation_metrics/loss", "validation_loss", 1.0),
    ] {
        let logged = lines.iter().filter_map(|line| Some((line["step"].as_u64()?, line.get(key)?.as_f64()?)));
        let logged: Vec<_> = logged.collect();
        let points = scalars[tag].as_array().unwrap_or_else(|| panic!("{tag}: {scalars}"));
        assert_eq!(points.len(), logged.len(), "{tag}: {points:?}");
        for (point, (step, value)) in points.iter().zip(logged) {
            let at = point[0].as_u64().unwrap();
            let read = point[1].as_f64().unwrap();
            assert!(
                at == step && (read - scale * value).abs() <= 1e-6 * value.abs(),
                "{tag}: {point} {value}"
            );
        }
    }
}

/// A process that is killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ask(port: u16) -> Option<String> {
    let mut client = TcpStream::connect(("127.0.0.1", port)).ok()?;
    client.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").ok()?;
    let mut text = String::new();
    client.read_to_string(&mut text).ok()?;
    Some(text)
}

#[test]
fn prometheus_gets_the_figures_of_a_running_run() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("run.toml"), MLP).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let listen = format!("telemetry.listen=127.0.0.1:{port}");
    let train = ["train", "run.toml", "--device", "cpu", "--run-dir", "run", "--set", "train.steps=10000000"];
    let mut command = Command::new(program());
    command.args(train).args(["--set", "parallel.data=2", "--set", &listen]);
    command.current_dir(directory.path()).stdout(Stdio::null()).stderr(Stdio::null());
    let running = Killed(command.spawn().unwrap());
    let began = Instant::now();
    let text = loop {
        let text = ask(port).unwrap_or_default();
        if text.contains("plimsoll_allocated_bytes{run=\"run\",rank=\"1\"}") {
            break text;
        }
        assert!(began.elapsed() < PATIENCE, "{text}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(text.starts_with("HTTP/1.1 200 OK") && text.contains("text/plain; version=0.0.4"), "{text}");
    for name in ["loss", "gradient_norm", "learning_rate", "step"] {
        assert!(text.contains(&format!("plimsoll_{name}{{run=\"run\"}} ")), "{name}: {text}");
    }
    // While it trains, the run is listed as running; after a kill, as killed.
    let listed = || {
        let output = plimsoll(directory.path(), &["runs", ".", "--json"]);
        serde_json::from_slice::<Value>(&output.stdout).unwrap()[0].clone()
    };
    assert_eq!(listed()["state"], "running");
    drop(running);
    assert_eq!((&listed()["state"], &listed()["grid"]), (&"killed".into(), &"2 × 1 × 1 × 1".into()));
}

#[test]
fn wrong_addresses_are_refused_before_a_run() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("run.toml"), MLP).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for (address, why) in [
        ("localhost", "not an IP address with a port"),
        ("127.0.0.1:99999", "not an IP address with a port"),
        ("0.0.0.0:9400", "telemetry.listen_publicly = true"),
        ("192.0.2.1:9400", "telemetry.listen_publicly = true"),
        (&taken, "in use"),
    ] {
        let set = format!("telemetry.listen={address}");
        let arguments = ["train", "run.toml", "--device", "cpu", "--run-dir", "run", "--set", &set];
        let refused = plimsoll(directory.path(), &arguments);
        let text = message(&refused);
        assert!(refused.status.code() == Some(2) && text.contains(why), "{address}: {text}");
        assert_eq!(text.trim_end().lines().count(), 1, "{text}");
        assert!(!directory.path().join("run").exists());
    }
}

#[test]
fn runs_are_listed_with_their_results() {
    let directory = tempfile::tempdir().unwrap();
    let runs = directory.path().join("runs");
    std::fs::create_dir(&runs).unwrap();
    train(&runs.join("a"), &["train.steps=4", "train.validate_every=2"], RunOptions::default());
    train(
        &runs.join("b"),
        &["train.steps=9", "parallel.data=2"],
        RunOptions { interrupt: Interrupt::after(3), ..RunOptions::default() },
    );
    std::fs::create_dir(runs.join("c")).unwrap();
    std::fs::write(runs.join("c/config.toml"), "[model]\nlayers = 0\n").unwrap();
    std::fs::create_dir(runs.join("no run")).unwrap();
    let device = DeviceChoice::Meta;
    let run_dir = Some(runs.join("d"));
    let on_meta = RunOptions { device, run_dir, quiet: true, ..RunOptions::default() };
    run::train(config(MLP, &["train.steps=2"]), on_meta).unwrap();
    let output = plimsoll(directory.path(), &["runs", "--json"]);
    let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [a, b, c, d] = listed.as_array().unwrap().as_slice() else { panic!("{listed}") };
    assert_eq!((&a["state"], &a["steps"], &a["of_steps"]), (&"complete".into(), &4.into(), &4.into()));
    assert_eq!(
        (&b["state"], &b["steps"], &b["grid"]),
        (&"stopped".into(), &3.into(), &"2 × 1 × 1 × 1".into())
    );
    assert!(c["state"] == "unreadable" && c["error"].as_str().unwrap().contains("layers"), "{c}");
    let nothing = ["loss", "tokens_per_second", "weights_sha256"].iter().all(|key| d[key].is_null());
    assert!(d["state"] == "complete" && d["steps"] == 2 && nothing, "{d}");
    let lines = metrics(&runs.join("a"));
    assert_eq!((&a["loss"], a["best_validation_loss"].as_f64().is_some()), (&lines[3]["loss"], true));
    let summary: Value =
        serde_json::from_str(&std::fs::read_to_string(runs.join("a/summary.json")).unwrap()).unwrap();
    assert_eq!(a["weights_sha256"], summary["weights_sha256"]);
    let text = message(&plimsoll(directory.path(), &["runs"]));
    let hash = &summary["weights_sha256"].as_str().unwrap()[..12];
    for part in ["complete", "4 of 4", "stopped", "3 of 9", "1 × 1", hash] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let missing = plimsoll(directory.path(), &["runs", "missing"]);
    assert!(missing.status.code() == Some(2) && message(&missing).contains("cannot be listed"));
    assert!(message(&plimsoll(directory.path(), &["runs", "runs/no run"])).contains("there are no runs"));
}

#[test]
fn text_of_users_is_escaped_on_every_page() {
    const BAD: &str = "<script>alert(1)";
    let directory = tempfile::tempdir().unwrap();
    let runs = [format!("a{BAD}"), format!("b{BAD}")];
    let text = GPT.replace("paths = [", &format!("base = '{}'\npaths = [", root().display()));
    // A path with an HTML tag in its name.
    let data = directory.path().join(format!("{BAD}.txt"));
    std::fs::write(&data, "to be or not to be, that is the question. ".repeat(200)).unwrap();
    std::fs::write(directory.path().join("run.toml"), text).unwrap();
    for (run, seed) in runs.iter().zip(["1", "2"]) {
        let paths = format!("data.paths=['{}']", data.display());
        let seed = format!("train.seed={seed}");
        let sets = ["--set", "train.steps=2", "--set", &paths, "--set", &seed];
        let arguments = [&["train", "run.toml", "--device", "cpu", "--run-dir", run][..], &sets].concat();
        let output = plimsoll(directory.path(), &arguments);
        assert!(output.status.success(), "{}", message(&output));
        // Names in its session record and its profile.
        let path = directory.path().join(run).join("sessions.json");
        let record = std::fs::read_to_string(&path).unwrap();
        let mut record: Value = serde_json::from_str(&record).unwrap();
        record[0]["host"] = BAD.into();
        std::fs::write(&path, record.to_string()).unwrap();
        let profile = ["profile", run, "--device", "cpu", "--steps", "1"];
        assert!(plimsoll(directory.path(), &profile).status.success());
        let path = directory.path().join(run).join("profile.json");
        let profile = std::fs::read_to_string(&path).unwrap().replace("linear", BAD);
        std::fs::write(&path, profile).unwrap();
    }
    for arguments in [
        &["report", &runs[0], &runs[1], "--output", "page.html"][..],
        &["compare", &runs[0], &runs[1], "--html", "page.html"],
    ] {
        plimsoll(directory.path(), arguments);
        let page = std::fs::read_to_string(directory.path().join("page.html")).unwrap();
        assert!(page.contains("&lt;script&gt;alert(1)") && !page.contains(BAD), "{arguments:?}");
        assert!(page.contains("Learning curves"), "{arguments:?}");
        // A single offline file: nothing is loaded from elsewhere.
        for part in ["src=", "http-equiv", "@import", "url("] {
            assert!(!page.contains(part), "{part}");
        }
    }
}

/// Returns the rates of the shipped description of an H200, with a host that takes `launch` seconds per call.
fn description(launch: f64) -> String {
    let shipped = include_str!("../launch/devices/h200.toml");
    let rates = &shipped[..shipped.find("# Measured calls").unwrap()];
    let with_launch = |line: &str| match line.starts_with("launch_seconds") {
        true => format!("launch_seconds = {launch:e}\n"),
        false => format!("{line}\n"),
    };
    rates.lines().map(with_launch).collect()
}

/// Returns a command's output, as users see it.
fn seen(directory: &Path, command: &[&str]) -> String {
    message(&plimsoll(directory, command))
}

#[test]
fn measured_steps_stand_beside_predicted_ones() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    std::fs::write(here.join("run.toml"), config(MLP, &["train.steps=9", "telemetry.every=4"]).to_toml())
        .unwrap();
    for (name, launch) in [("fast", 1e-9), ("slow", 1.0)] {
        std::fs::write(here.join(format!("{name}.toml")), description(launch)).unwrap();
        let set = format!("telemetry.device={name}.toml");
        let train = ["train", "run.toml", "--device", "cpu", "--run-dir", name, "--set", &set];
        let output = plimsoll(here, &[&train[..], &["--set", "telemetry.tensorboard=true"]].concat());
        let text = message(&output);
        assert!(output.status.success(), "{text}");
        // The prediction equals the plan's, and is shown wherever steps are.
        let plan = plimsoll(here, &["plan", "run.toml", "--device", &format!("{name}.toml"), "--json"]);
        let plan: Value = serde_json::from_slice(&plan.stdout).unwrap();
        let predicted = plan["predicted_step_seconds"].as_f64().unwrap();
        let timed: Vec<_> =
            metrics(&here.join(name)).into_iter().filter(|line| line["seconds"].is_f64()).collect();
        assert_eq!(timed.len(), 8);
        assert!(timed.iter().all(|line| line["predicted_seconds"].as_f64() == Some(predicted)), "{timed:?}");
        assert!(text.contains(" predicted; training loss"), "{text}");
        let shown = format!("predicted {:.1}", 1e3 * predicted);
        let events =
            std::fs::read(here.join(name).join("tensorboard/events.out.tfevents.0.plimsoll")).unwrap();
        assert!(events.windows(25).any(|tag| tag == b"time_metrics/predicted(s)"));
        let report = plimsoll(here, &["report", name, "--output", &format!("{name}.html")]);
        assert!(report.status.success(), "{}", message(&report));
        let page = std::fs::read_to_string(here.join(format!("{name}.html"))).unwrap();
        let watched = seen(here, &["watch", name, "--once"]);
        for text in [&text, &page, &watched] {
            assert!(text.contains(&shown), "{shown}: {text}");
        }
        // Slow steps are reported once, with the phase and the rank.
        let slow = text.lines().filter(|line| line.contains(" predicted for NVIDIA H200: phase ")).count();
        assert_eq!(slow, usize::from(name == "fast"), "{text}");
        for text in [&page, &watched] {
            assert_eq!(text.contains(" predicted for NVIDIA H200: phase "), name == "fast", "{text}");
        }
        assert!(
            text.contains(&format!("predicted: {:.1} ms a step, by rates measured on", 1e3 * predicted)),
            "{text}"
        );
    }
}

#[test]
fn runs_without_a_described_device_have_no_prediction() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    train(&here.join("run"), &["train.steps=3"], RunOptions::default());
    let described = "telemetry.device=h200";
    train(
        &here.join("unplanned"),
        &["train.steps=3", described],
        RunOptions { no_plan: true, ..RunOptions::default() },
    );
    for run in ["run", "unplanned"] {
        assert!(!here.join(run).join("prediction.json").exists());
        assert!(metrics(&here.join(run)).iter().all(|line| line.get("predicted_seconds").is_none()));
    }
    // A session with another device replaces the prediction, and one without a device removes it.
    let run_dir = here.join("run");
    for (set, is_predicted) in [(described, true), ("telemetry.device=", false)] {
        let steps = format!("train.steps={}", if is_predicted { 4 } else { 5 });
        train(&run_dir, &[&steps, set], RunOptions { resume: true, ..RunOptions::default() });
        assert_eq!(run_dir.join("prediction.json").exists(), is_predicted);
    }
    std::fs::write(here.join("cpu.toml"), seen(here, &["plan", "--describe", "--device", "cpu"])).unwrap();
    std::fs::write(here.join("run.toml"), MLP).unwrap();
    for (device, why) in [
        ("h201", "write a file of `plimsoll plan --describe`, or a100-40gb"),
        ("missing.toml", "missing.toml"),
        ("cpu.toml", "it describes a CPU, whose steps are not predicted"),
    ] {
        let set = format!("telemetry.device={device}");
        let refused =
            plimsoll(here, &["train", "run.toml", "--device", "cpu", "--run-dir", "out", "--set", &set]);
        let text = message(&refused);
        assert_eq!((refused.status.code(), text.lines().count()), (Some(2), 1), "{text}");
        assert!(text.contains("telemetry.device = ") && text.contains(why), "{text}");
        assert!(!here.join("out").exists());
    }
}
