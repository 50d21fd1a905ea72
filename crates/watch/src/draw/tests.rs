//! Tests of drawing artificial runs.
#![allow(clippy::unwrap_used, reason = "in tests, a panic is the report of a failure")]

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;
use telemetry::{GpuLoad, PhaseFigures, RankStep};

use super::*;

const CONFIG: &str = "[model]\nkind = \"mlp\"\nsizes = [3, 5]\n[data]\nkind = \"synthetic\"\n[train]\nsteps = 100\n\
                      micro_batch_size = 4\nglobal_batch_size = 8\n[parallel]\ndata = 2\n";

/// Returns a record of `rank` with `more` additional bytes and a forward pass of `microseconds`.
fn record(rank: usize, more: u64, microseconds: u64, gpu: Option<GpuLoad>) -> RankStep {
    let figures = PhaseFigures { microseconds: Some(microseconds), ..PhaseFigures::default() };
    RankStep {
        rank,
        allocated_bytes: (3 << 20) + more,
        reserved_bytes: 6 << 20,
        capacity_bytes: 12 << 20,
        step_peak_allocated_bytes: 5 << 20,
        phases: BTreeMap::from([("forward".to_owned(), figures)]),
        gpu,
        ..RankStep::default()
    }
}

fn line(step: u64, ranks: &[RankStep]) -> String {
    let rate = 0.01 / step as f64;
    json!({"step": step, "seconds": 0.25, "loss": 3.0 - step as f64 / 10.0, "learning_rate": rate,
           "tokens_per_second": 24_690.0, "mfu": 0.5, "ranks": ranks})
    .to_string()
        + "\n"
}

/// Returns a view of a run whose `metrics.jsonl` and `sessions.json` have these contents.
fn view(run_dir: &Path, metrics: &str, ending: &str) -> RunView {
    std::fs::write(run_dir.join("config.toml"), CONFIG).unwrap();
    std::fs::write(run_dir.join("metrics.jsonl"), metrics).unwrap();
    std::fs::write(run_dir.join("sessions.json"), json!([{"ending": ending}]).to_string()).unwrap();
    let mut run = RunView::open(run_dir).unwrap();
    run.refresh().unwrap();
    run
}

#[test]
fn a_run_in_progress_has_a_row_for_every_rank() {
    let directory = tempfile::tempdir().unwrap();
    let load = GpuLoad {
        utilization_percent: Some(97),
        power_watts: Some(690),
        power_limit_watts: Some(700),
        clock_mhz: Some(1320),
        throttled: vec!["power cap".to_owned()],
        ..GpuLoad::default()
    };
    let lines: String = (1..=5)
        .map(|step| {
            line(step, &[record(0, step << 10, 40_000, Some(load.clone())), record(1, 0, 30_000, None)])
        })
        .collect();
    // The training process holds the lock.
    let lock = std::fs::File::open(directory.path()).unwrap();
    lock.lock().unwrap();
    // The last line is incomplete, as while it is being written.
    let mut run = view(directory.path(), &(lines.clone() + "{\"step\":6"), "running");
    let text = frame(&run, 160);
    for part in [
        "running",
        "step 5/100",
        "loss 2.5000   learning rate 2.000e-3   24,690 samples/s   MFU 50.0 %   250.0 ms a step   eta 00:00:24",
        "rank memory",
        "   0 ██████▒▒▒▒··········   3.00 MiB   6.00 MiB  12.00 MiB   5.00 MiB",
        "97 %   690/700 W  1320 MHz",
        "loss 2.5000, from 2.5000 to 2.9000",
        "learning rate 2.00e-3, from 2.00e-3 to 0.0100",
        "! rank 0 computes 33.3 % longer than rank 1, which waits for it",
        "! rank 0 holds 1.00 KiB more after every step since step 2",
        "! the GPU of rank 0 is throttled to 1320 MHz: power cap",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!text.contains("rank 1 holds"), "{text}");
    // Narrow views omit columns.
    let narrow = frame(&run, 60);
    assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
    assert!(narrow.contains("allocated") && !narrow.contains("capacity"), "{narrow}");
    // A run that is resumed after step 3 repeats step 4.
    let resumed: String = lines.lines().take(3).map(|line| format!("{line}\n")).collect();
    std::fs::write(directory.path().join("metrics.jsonl"), resumed + &line(4, &[record(0, 0, 1, None)]))
        .unwrap();
    run.refresh().unwrap();
    assert_eq!(run.points.iter().map(|point| point.step).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(!frame(&run, 160).contains("throttled"), "the latest record counts");
}

#[test]
fn a_run_that_has_ended_says_how() {
    let directory = tempfile::tempdir().unwrap();
    let run = view(directory.path(), &line(100, &[record(0, 0, 10, None)]), "complete");
    let text = frame(&run, 100);
    assert!(text.contains("complete") && text.contains("step 100/100"), "{text}");
    assert!(!text.contains("eta") && !text.contains('!') && !text.contains("GPU"), "{text}");
    let run = view(directory.path(), "", "running");
    let text = frame(&run, 100);
    assert!(text.contains("killed") && text.contains("no step has been written yet"), "{text}");
    assert!(RunView::open(&directory.path().join("missing")).is_err());
}
