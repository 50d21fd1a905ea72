//! Tests of `plimsoll replay`: recordings that match, one that differs, and other files.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output};

use crate::common::{golden, program, root};

fn replay(files: &[PathBuf]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } =
        Command::new(program()).arg("replay").args(files).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn every_recording_matches() {
    let mut files: Vec<PathBuf> = std::fs::read_dir(golden(""))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.to_string_lossy().ends_with(".json.gz") || path.to_string_lossy().ends_with(".jsonl.gz")
        })
        .collect();
    files.sort();
    let (status, printed, errors) = replay(&files);
    assert_eq!((status, errors.as_str()), (Some(0), ""), "{printed}");
    assert_eq!(printed.lines().count(), files.len());
    for (line, file) in printed.lines().zip(&files) {
        assert!(line.starts_with(&format!("{}: ", file.display())), "{line}");
        assert!(line.ends_with(" operations, 0 mismatches"), "{line}");
    }
    assert!(printed.contains("default_mixed.json.gz: 2,000 operations"));
}

#[test]
fn a_mismatch_is_printed_and_fails() {
    // Two operations; the second has a wrong counter.
    let recording = r#"{"total_memory": 1073741824, "alloc_conf": "",
        "limit_bytes": null, "limit_fraction": null,
        "stat_names": ["allocation.all.current", "num_sync_all_streams"], "initial": [0, 1],
        "ops": [["alloc", 1, 3000, 0, 4194304, [1, 1]], ["free", 1, [987654, 1]]],
        "segment_events": [["segment_alloc", 4194304, 2097152, 0]]}"#;
    let mut file = tempfile::NamedTempFile::with_suffix(".json").unwrap();
    file.write_all(recording.as_bytes()).unwrap();
    let (status, printed, _) = replay(&[file.path().to_owned(), golden("streams.json.gz")]);
    assert_eq!(status, Some(1), "{printed}");
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines[0].ends_with(": 2 operations, 1 mismatch"), "{printed}");
    assert!(
        lines[1].contains("allocation.all.current is 0") && lines[1].contains("recorded 987654"),
        "{printed}"
    );
    assert!(lines[2].ends_with(": 2,000 operations, 0 mismatches"), "{printed}");
}

#[test]
fn other_files_are_refused() {
    for file in [golden("nowhere.json.gz"), root().join("Cargo.toml")] {
        let (status, printed, errors) = replay(std::slice::from_ref(&file));
        assert_eq!((status, printed.as_str()), (Some(2), ""));
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.contains(&file.display().to_string()), "{errors}");
    }
    assert_eq!(replay(&[]).0, Some(2));
}
