//! Tests of the files of a run directory, and of progress lines.

use serde_json::{Map, Value};
use telemetry::GridSizes;
use telemetry::TelemetryError;
use telemetry::metrics::{self, MetricsWriter, StepMetrics};
use telemetry::progress::{Progress, StepFigures};
use telemetry::run_files::{Summary, atomic_write, remove_temporaries};

/// Losses that read back unchanged only if their decimal form is exact.
const LOSSES: [f32; 6] = [0.1, 1.0 / 3.0, 5.545_177_5, f32::MIN_POSITIVE, f32::MAX, 16_777_217.0];

#[test]
fn metrics_read_back_to_the_bit() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics.jsonl");
    let mut writer = MetricsWriter::create(&path).unwrap();
    for (index, loss) in LOSSES.into_iter().enumerate() {
        let more = Map::from_iter([("validation_loss".to_owned(), Value::from(2.5))]);
        let line =
            StepMetrics { step: index as u64 + 1, loss, allocated_bytes: 512, more, ..Default::default() };
        writer.write(&line).unwrap();
        writer.syncer().sync().unwrap();
        // Read while the writer is open, because a killed run must have these lines.
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.ends_with('\n'));
        assert_eq!(text.lines().count(), index + 1);
        let read: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        let number = serde_json::from_value::<f32>(read["loss"].clone()).unwrap();
        assert_eq!(number.to_bits(), loss.to_bits());
        assert_eq!((&read["step"], &read["allocated_bytes"]), (&(index + 1).into(), &512.into()));
        assert_eq!(read["validation_loss"], 2.5);
    }
    writer.write(&StepMetrics { loss: f32::NAN, ..Default::default() }).unwrap();
    writer.finish().unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let read: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(read["loss"], Value::Null);
    let keys: Vec<_> = read.as_object().unwrap().keys().cloned().collect();
    for key in ["step", "loss", "learning_rate", "gradient_norm", "tokens_per_second", "peak_reserved_bytes"]
    {
        assert!(keys.iter().any(|k| k == key), "{key} is not among {keys:?}");
    }
}

#[test]
fn metrics_continue_after_a_step() {
    let line = |step: u64| format!("{{\"step\":{step},\"loss\":null}}\n");
    let all = |steps: std::ops::RangeInclusive<u64>| steps.map(line).collect::<String>();
    let none = String::new;
    // The content before, the step to continue after, the content that is kept, and the content moved aside.
    let table = [
        (all(1..=5), 3, all(1..=3), none()),
        (all(1..=5), 5, all(1..=5), none()),
        (all(1..=5), 9, all(1..=5), none()),
        (all(1..=5), 0, none(), none()),
        (none(), 3, none(), none()),
        // An incomplete line, and a line without a line feed, as a killed process leaves them.
        (all(1..=3) + "{\"step\":4,\"lo", 4, all(1..=3), none()),
        (all(1..=3) + line(4).trim_end(), 4, all(1..=3), none()),
        // A line that is not JSON does not affect other lines.
        (all(1..=2) + "nonsense\n" + &line(3), 3, all(1..=3), "nonsense\n".to_owned()),
        ("x\n".to_owned() + &all(1..=900), 900, all(1..=900), "x\n".to_owned()),
        // A flipped bit in the step: to an earlier step, to a later step of the run, and beyond the run.
        (all(1..=6) + &line(3) + &all(8..=20), 20, all(1..=6) + &all(8..=20), line(3)),
        (all(1..=6) + &line(15) + &all(8..=20), 20, all(1..=6) + &all(8..=20), line(15)),
        (all(1..=6) + &line(71) + &all(8..=20), 20, all(1..=6) + &all(8..=20), line(71)),
        // Steps that an earlier resume moved aside leave gaps.
        (all(1..=6) + &all(8..=20), 20, all(1..=6) + &all(8..=20), none()),
    ];
    for (before, step, after, aside) in table {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        std::fs::write(&path, &before).unwrap();
        let mut writer = MetricsWriter::resume(&path, step).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), after, "{step} of {before}");
        let moved = std::fs::read_to_string(directory.path().join("metrics.damaged.jsonl"));
        assert_eq!(moved.unwrap_or_default(), aside, "{step} of {before}");
        writer.write(&StepMetrics { step: 7, ..Default::default() }).unwrap();
        writer.finish().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with(&(after.clone() + "{\"step\":7,")) && text.ends_with("}\n"), "{text}");
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics.jsonl");
    MetricsWriter::resume(&path, 3).unwrap().finish().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"");
}

/// Checks that an overlong line is refused and nothing is changed.
#[test]
fn metrics_do_not_continue_after_an_endless_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics.jsonl");
    assert!(metrics::check(&path).is_ok());
    std::fs::write(&path, "{\"step\":1}\nnonsense\n").unwrap();
    assert!(metrics::check(&path).is_ok());
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 42).unwrap();
    for refused in [metrics::check(&path), MetricsWriter::resume(&path, 1).map(drop)] {
        let error = refused.unwrap_err();
        assert!(error.is_refused() && error.to_string().contains("line 3 has more than"), "{error}");
    }
    assert_eq!(path.metadata().unwrap().len(), 1 << 42);
    assert!(!directory.path().join("metrics.damaged.jsonl").exists());
}

#[test]
fn a_summary_has_its_stable_keys() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("summary.json");
    std::fs::write(&path, "an older one").unwrap();
    let summary = Summary {
        device: "cpu".into(),
        world_size: 4,
        grid: GridSizes::from_iter([("data", 2), ("pipeline", 2)]),
        steps: 2,
        losses: LOSSES.to_vec(),
        weights_sha256: "00ff".into(),
        tokens_per_second: 1e5,
        ranks: vec![],
        more: Map::from_iter([("validation_loss".to_owned(), 2.5.into())]),
    };
    summary.write(&path).unwrap();
    let read: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let losses: Vec<f32> = serde_json::from_value(read["losses"].clone()).unwrap();
    assert_eq!(losses, LOSSES);
    assert_eq!(read["grid"], serde_json::json!({"data": 2, "pipeline": 2}));
    assert_eq!((&read["weights_sha256"], &read["validation_loss"]), (&"00ff".into(), &2.5.into()));
    let again = Summary::read(&path).unwrap().unwrap();
    assert_eq!((again.losses.as_slice(), &again.grid), (&LOSSES[..], &summary.grid));
    assert!(Summary::read(&directory.path().join("missing")).unwrap().is_none());
    let names: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["summary.json"], "no temporary file is left");
}

#[test]
fn a_failed_write_names_the_file_and_keeps_the_old_one() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing/summary.json");
    let error = atomic_write(&missing, b"x").unwrap_err().to_string();
    assert!(error.starts_with(&format!("{}: cannot write it: ", missing.display())), "{error}");
    let error = MetricsWriter::create(&missing).unwrap_err();
    assert!(matches!(&error, TelemetryError::File(failed) if failed.path == missing), "{error}");
    // A directory is not replaced by a file.
    let occupied = directory.path().join("occupied");
    std::fs::create_dir(&occupied).unwrap();
    let error = atomic_write(&occupied, b"x").unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("{}: cannot write it: it is a directory", occupied.display())),
        "{error}"
    );
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "no temporary file is left");
    assert!(atomic_write(std::path::Path::new("/"), b"x").is_err());
}

#[test]
fn only_temporary_files_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("summary.json");
    let others =
        ["summary.json", ".summary.json", ".summary.json.", ".summary.json.12x", ".metrics.jsonl.12", "12"];
    for name in [&others[..], &[".summary.json.12", ".summary.json.4194304"]].concat() {
        std::fs::write(directory.path().join(name), "").unwrap();
    }
    remove_temporaries(&path).unwrap();
    let left =
        std::fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    assert_eq!(left.collect::<std::collections::BTreeSet<_>>(), others.map(str::to_owned).into());
}

#[test]
fn progress_has_the_first_the_last_and_every_nth_step() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("progress");
    let mut progress = Progress::lines(Box::new(std::fs::File::create(&path).unwrap()), 25, 10);
    for step in 1..=25 {
        let warm = step > 1;
        let figures = StepFigures {
            loss: Some(2.5),
            loss_per_byte: None,
            later_losses: if warm { vec![3.25, 4.5] } else { Vec::new() },
            rewards: None,
            throughput: warm.then_some(1_234_567.0),
            mfu: warm.then_some(0.4125),
            predicted: warm.then_some([0.1071, 0.1047]),
            memory: warm.then_some([3 << 20, 5 << 29]),
            skipped: warm.then_some(2),
        };
        progress.step(step, &figures);
    }
    progress.finish();
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<_> = text.lines().collect();
    let steps: Vec<_> = lines.iter().map(|line| line.split_whitespace().nth(1).unwrap()).collect();
    assert_eq!(steps, ["1/25", "10/25", "20/25", "25/25"]);
    assert!(lines[0].ends_with("loss 2.5000  eta unknown"), "{}", lines[0]);
    let figures = "loss 2.5000  of later tokens 3.2500, 4.5000  1,234,567 tokens/s  MFU 41.2 %  107.1 ms, predicted 104.7  skipped 2  memory 3.00 MiB, peak 2.50 GiB  eta ";
    assert!(lines[1].contains(figures), "{}", lines[1]);
    assert!(lines[3].ends_with("eta 00:00:00"), "{}", lines[3]);
}
