//! Tests of memory files of a real run, read by Python and rendered by PyTorch if installed.

use std::path::Path;
use std::process::{Command, Output};

use crate::common::python::python_with;
use crate::common::runs::{GPT, config, train_in};
use run::TrainReport;
use telemetry::Unit;
use worker::DeviceChoice;

fn run(directory: &Path, overrides: &[&str]) -> TrainReport {
    train_in(directory, config(GPT, overrides), DeviceChoice::Cpu).unwrap()
}

fn output_of(python: &str, arguments: &[&str]) -> Output {
    Command::new(python).args(arguments).output().unwrap()
}

/// Python script that checks the assumptions of PyTorch's viewer: sizes of blocks add up, and every event's
/// block is in an existing segment when the history is replayed backwards.
const CHECK: &str = r#"
import pickle, sys
top = pickle.load(open(sys.argv[1], 'rb'))
allocated = 0
for s in top['segments']:
    address = s['address']
    for b in s['blocks']:
        assert b['address'] == address
        assert b['state'] in ('active_allocated', 'active_pending_free', 'inactive')
        address += b['size']
    assert address == s['address'] + s['total_size']
    assert s['allocated_size'] == sum(b['size'] for b in s['blocks'] if b['state'] == 'active_allocated')
    allocated += s['allocated_size']
trace = top['device_traces'][0]
live = {b['address'] for s in top['segments'] for b in s['blocks'] if b['state'] == 'active_allocated'}
modules, steps, categories = set(), set(), set()
for e in reversed(trace):
    if e['action'] == 'alloc':
        assert e['addr'] in live, hex(e['addr'])
        live.remove(e['addr'])
        module, step, operator = e['frames'][0]['filename'], e['frames'][0]['line'], e['frames'][0]['name']
        modules.add(module); steps.add(step); categories.add(e['category'])
    elif e['action'] == 'free_completed':
        assert e['addr'] not in live
        live.add(e['addr'])
assert {'parameter', 'gradient', 'optimizer_state', 'activation', 'unknown'} <= categories, categories
assert any('h.1' in m and 'mlp' in m for m in modules), modules
assert len(steps) >= 6, steps
print(allocated)
"#;

#[test]
fn views_agree_with_statistics() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let report = run(&run_dir, &["parallel.data=2", "memory.history=1000000"]);
    assert!(report.unplanned.as_ref().is_some_and(Vec::is_empty));
    for rank in &report.ranks {
        let path = |ending: &str| run_dir.join(format!("memory/rank-{}.{ending}", rank.rank));
        let table = std::fs::read_to_string(path("txt")).unwrap();
        assert!(table.contains("| Allocated memory") && table.contains("reserved over allocated"));
        let page = std::fs::read_to_string(path("html")).unwrap();
        assert!(page.contains("<svg") && page.contains("h.*.mlp") && !page.contains("http"));
        let pickle = path("pickle");
        let Some(python) = python_with(&["pickle"]) else { return };
        let output = output_of(&python, &["-c", CHECK, pickle.to_str().unwrap()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let allocated: u64 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
        assert_eq!(allocated, rank.get(telemetry::Statistic::AllocatedBytes));
        rendered_by_pytorch(&pickle, directory.path());
    }
}

fn rendered_by_pytorch(pickle: &Path, directory: &Path) {
    let Some(python) = python_with(&["torch"]) else { return };
    for plot in ["trace_plot", "segment_plot"] {
        let page = directory.join(format!("{plot}.html"));
        let arguments =
            ["-m", "torch.cuda._memory_viz", plot, pickle.to_str().unwrap(), "-o", page.to_str().unwrap()];
        let output = output_of(&python, &arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(std::fs::metadata(&page).unwrap().len() > 1000);
    }
    // PyTorch asserts that the sizes of all blocks add up.
    let output = output_of(&python, &["-m", "torch.cuda._memory_viz", "stats", pickle.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn recording_history_changes_no_byte() {
    let directory = tempfile::tempdir().unwrap();
    let with = directory.path().join("with");
    let without = directory.path().join("without");
    let a = run(&with, &["memory.history=100"]);
    let b = run(&without, &[]);
    assert_eq!(a.summary.weights_sha256, b.summary.weights_sha256);
    let counts = |unit| unit != Unit::Microseconds;
    let figures = |report: &TrainReport| {
        report.ranks[0].iter().filter(|(statistic, _)| counts(statistic.unit())).collect::<Vec<_>>()
    };
    assert_eq!(figures(&a), figures(&b));
    assert!(with.join("memory/rank-0.html").exists() && !without.join("memory").exists());
}
