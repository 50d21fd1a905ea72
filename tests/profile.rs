//! Tests of `plimsoll profile`: the operators of a step, their trace, and ranges for profiling tools.

use std::path::Path;
use std::process::{Command, Output};

use crate::common::runs::{GPT, MLP, config, train_in};
use crate::common::{library, program, root};
use serde_json::Value;
use worker::DeviceChoice;

fn plimsoll(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(program()).args(arguments).current_dir(directory).output().unwrap()
}

fn message(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).join("")
}

/// Writes a configuration that reads the repository's files.
fn written(directory: &Path, text: &str) {
    let text = text.replace("paths = [", &format!("base = '{}'\npaths = [", root().display()));
    std::fs::write(directory.join("run.toml"), text).unwrap();
}

fn sum(rows: &Value, key: &str) -> f64 {
    rows.as_array().unwrap().iter().map(|row| row[key].as_f64().unwrap()).sum()
}

/// Returns the bytes sent in a step along each axis, from a profile or a plan.
fn sent(axes: &Value) -> Vec<(String, u64)> {
    let axes = axes.as_array().map(Vec::as_slice).unwrap_or_default();
    let axis_bytes =
        |axis: &Value| (axis["axis"].as_str().unwrap().to_owned(), axis["step_bytes_sent"].as_u64().unwrap());
    axes.iter().map(axis_bytes).collect()
}

/// Returns the planned bytes sent in a step along each axis.
fn planned(directory: &Path, sets: &[&str]) -> Vec<(String, u64)> {
    let mut arguments = vec!["plan", "run.toml", "--device", "cpu", "--json"];
    sets.iter().for_each(|set| arguments.extend(["--set", set]));
    let output = plimsoll(directory, &arguments);
    assert!(output.status.success(), "{}", message(&output));
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    sent(&plan["communication"])
}

#[test]
fn the_table_adds_up_to_the_trace_on_every_grid() {
    let directory = tempfile::tempdir().unwrap();
    written(directory.path(), GPT);
    for (number, sets) in [
        &["memory.recompute=none"][..],
        &["parallel.data=2", "parallel.pipeline=2", "parallel.schedule=zero-bubble"],
        &["memory.recompute=block", "parallel.data=2", "parallel.zero_stage=1", "parallel.tensor=2"],
    ]
    .into_iter()
    .enumerate()
    {
        let trace = format!("trace-{number}.json");
        let mut arguments = vec!["profile", "run.toml", "--device", "cpu", "--steps", "2", "--json"];
        arguments.extend(["--trace", &trace]);
        sets.iter().for_each(|set| arguments.extend(["--set", set]));
        let output = plimsoll(directory.path(), &arguments);
        assert!(output.status.success(), "{}", message(&output));
        let profile: Value = serde_json::from_slice(&output.stdout).unwrap();
        let operators = &profile["operators"];
        let modules = &profile["modules"];
        let trace = std::fs::read_to_string(directory.path().join(trace)).unwrap();
        let trace: Value = serde_json::from_str(&trace).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let own = |key: &str| -> f64 { events.iter().filter_map(|event| event["args"][key].as_f64()).sum() };
        for (in_table, in_trace, unit) in [
            ("device_milliseconds", "own_device_us", 1e3),
            ("host_milliseconds", "own_host_us", 1e3),
            ("allocated_bytes", "allocated_bytes", 1.0),
            ("kept_bytes", "kept_bytes", 1.0),
            ("flops", "flops", 1.0),
        ] {
            // Two steps.
            let table = sum(operators, in_table);
            let traced = own(in_trace) / unit / 2.0;
            assert!((table - traced).abs() <= 1e-6 * table.abs().max(1.0), "{in_table}: {table} {traced}");
            let by_module = sum(modules, in_table);
            assert!((table - by_module).abs() <= 1e-6 * table.abs().max(1.0), "{in_table}: {by_module}");
        }
        // The best rate is an upper bound: no row exceeds it.
        let best = profile["flops_per_second"].as_f64().unwrap() / 1e3;
        for row in operators.as_array().unwrap().iter().chain(modules.as_array().unwrap()) {
            let [flops, time] = ["flops", "device_milliseconds"].map(|key| row[key].as_f64().unwrap());
            assert!(flops <= best * time * (1.0 + 1e-9), "{row} beyond {best}");
        }
        assert_eq!(sent(&profile["sent"]), planned(directory.path(), sets), "{sets:?}");
        // The phases partition a step, and so do operators.
        let phases: f64 =
            events.iter().filter(|event| event["cat"] == "phase").map(|e| e["dur"].as_f64().unwrap()).sum();
        let table = 2e3 * sum(operators, "device_milliseconds");
        assert!((table / phases - 1.0).abs() < 0.03, "{table} of {phases}");
        assert!(
            events.iter().any(|event| event["ph"] == "C" && event["args"]["allocated"].as_u64() > Some(0))
        );
        let has = |name: &str, pass: &str| {
            operators.as_array().unwrap().iter().any(|row| row["name"] == name && row["pass"] == pass)
        };
        assert!(
            has("attention", "forward") && has("attention", "backward") && has("linear", "backward weight")
        );
        assert_eq!(has("attention", "recompute"), number == 2, "{operators}");
        // A step leaves as many bytes as it found, except for what the next step keeps.
        assert_eq!(profile["ranks"], [1, 4, 4][number]);
    }
}

#[test]
fn flops_are_those_of_the_matmuls_and_tables_have_orders() {
    let directory = tempfile::tempdir().unwrap();
    written(directory.path(), MLP);
    let profile = ["profile", "run.toml", "--device", "cpu", "--steps", "1"];
    let output = plimsoll(directory.path(), &[&profile[..], &["--json"]].concat());
    let parsed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let weights = [3 * 300, 300 * 300, 300 * 400, 400 * 300, 300 * 100];
    let all: u64 = weights.iter().sum();
    // Forward, weight gradients, and input gradients of all layers but the first, for 80 samples.
    let flops = 2 * 80 * (3 * all - weights[0]);
    assert_eq!(sum(&parsed["operators"], "flops"), flops as f64);
    for (order, first) in
        [(&["--sort", "bytes", "--limit", "2"][..], "linear"), (&["--by", "module", "--limit", "99"], "")]
    {
        let output = plimsoll(directory.path(), &[&profile[..], order].concat());
        let text = message(&output);
        let lines: Vec<_> = text.lines().collect();
        let header =
            lines.iter().position(|line| line.contains("device ms")).unwrap_or_else(|| panic!("{text}"));
        assert!(lines[header + 2].starts_with(first), "{text}");
        assert!(text.contains("total") && text.contains("of best"), "{text}");
        assert_eq!(lines.iter().any(|line| line.contains(" more ")), order.contains(&"2"), "{text}");
    }
    // Invalid arguments end with status 2.
    std::fs::write(directory.path().join("mine.json"), "{}").unwrap();
    for (arguments, why) in [
        (&["--steps", "0"][..], "0"),
        (&["--sort", "name"], "possible values"),
        (&["--trace", "mine.json"], "--force"),
        (&["--device", "meta"], "no times"),
    ] {
        let output = plimsoll(directory.path(), &[&["profile", "run.toml"], arguments].concat());
        assert!(output.status.code() == Some(2) && message(&output).contains(why), "{}", message(&output));
    }
}

#[test]
fn a_profile_of_a_run_is_on_its_page() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    train_in(&run_dir, config(GPT, &["train.steps=2"]), DeviceChoice::Cpu).unwrap();
    for arguments in [&["profile", "run", "--device", "cpu", "--steps", "1"][..], &["report", "run"]] {
        let output = plimsoll(directory.path(), arguments);
        assert!(output.status.success(), "{}", message(&output));
    }
    let page = std::fs::read_to_string(run_dir.join("report.html")).unwrap();
    for text in ["id=\"operators\"", "residual_layer_norm", "backward weight"] {
        assert!(page.contains(text), "{text}");
    }
}

/// Source of a profiling library that writes the names of ranges to the file in `RANGES`.
const TOOL: &str = r#"
#include <stdio.h>
#include <stdlib.h>
typedef const void *(*Export)(unsigned);
typedef int (*Modules)(int, void (****)(void), unsigned *);
static FILE *out;
static int depth;
static int push(const char *name) { fprintf(out, "push %s\n", name); return depth++; }
static int pop(void) { fprintf(out, "pop\n"); fflush(out); return --depth; }
static unsigned long long start(const char *name) { fprintf(out, "start %s\n", name); return 7; }
static void end(unsigned long long id) { fprintf(out, "end %llu\n", id); fflush(out); }
int InitializeInjectionNvtx2(Export export) {
    const struct { size_t size; Modules modules; } *callbacks = export(1);
    const struct { size_t size; unsigned version; } *versions = export(3);
    void (***table)(void);
    unsigned size = 0;
    out = fopen(getenv("RANGES"), "w");
    if (!out || versions->version != 3 || !callbacks->modules(1, &table, &size) || size != 16) return 0;
    *table[9] = (void (*)(void))push;
    *table[11] = (void (*)(void))pop;
    *table[5] = (void (*)(void))start;
    *table[7] = (void (*)(void))end;
    return 1;
}
"#;

#[test]
fn a_tool_gets_ranges_of_steps_phases_modules_and_operators() {
    let directory = tempfile::tempdir().unwrap();
    let Some(library) = library::compiled(directory.path(), TOOL) else { return };
    written(directory.path(), GPT);
    let train = |run_dir: &str, tool: bool| {
        let mut command = Command::new(program());
        command.args([
            "train",
            "run.toml",
            "--device",
            "cpu",
            "--set",
            "train.steps=2",
            "--run-dir",
            run_dir,
        ]);
        if tool {
            command.env("NVTX_INJECTION64_PATH", &library).env("RANGES", directory.path().join("ranges"));
        }
        let output = command.current_dir(directory.path()).output().unwrap();
        assert!(output.status.success(), "{}", message(&output));
        let summary = std::fs::read_to_string(directory.path().join(run_dir).join("summary.json")).unwrap();
        serde_json::from_str::<Value>(&summary).unwrap()["weights_sha256"].clone()
    };
    assert_eq!(train("with", true), train("without", false));
    let ranges = std::fs::read_to_string(directory.path().join("ranges")).unwrap();
    let count = |line: &str| ranges.lines().filter(|range| *range == line).count();
    for line in
        ["start step 2", "start forward", "push h.1.mlp", "push feed_forward", "push linear, backward weight"]
    {
        assert!(count(line) > 0, "{line}");
    }
    let begun = |kind: &str| ranges.lines().filter(|line| line.starts_with(kind)).count();
    assert_eq!((begun("push"), begun("start")), (count("pop"), count("end 7")));
}
