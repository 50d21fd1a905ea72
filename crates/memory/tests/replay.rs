//! Every recording of PyTorch's allocator replays without a difference, and every kind of difference is
//! detected.

use std::path::{Path, PathBuf};

use memory::replay::{Operation, Recording, parse, read, replay, replay_bytes};

fn golden() -> Vec<PathBuf> {
    // Cargo runs tests in the folder of their package.
    let mut files: Vec<PathBuf> = std::fs::read_dir("../../tests/golden")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.to_string_lossy().ends_with(".json.gz") || path.to_string_lossy().ends_with(".jsonl.gz")
        })
        .collect();
    files.sort();
    files
}

#[test]
fn recordings_replay_without_a_difference() {
    let files = golden();
    assert!(files.len() >= 25, "{files:?}");
    for path in files {
        let report = replay(&path).unwrap();
        // Files that begin with `more` are short scripts of cases that the others leave out: requests larger
        // than the device, a full device, more than three streams, changed settings, pools without splitting.
        let short = path.file_name().unwrap().to_string_lossy().starts_with("more-");
        assert!(report.operations >= if short { 200 } else { 1000 }, "{}", path.display());
        assert_eq!((report.mismatches, report.first), (0, None), "{}", path.display());
    }
}

/// Returns a recording of four operations, with `from` replaced by `to`.
fn tampered(from: &str, to: &str) -> String {
    let whole = r#"{"case":"t","total_memory":1073741824,"alloc_conf":"","limit_bytes":33554432,"limit_fraction":0.03125,
"stat_names":["allocation.all.current","reserved_bytes.all.current","num_ooms"],"initial":[0,0,0],"ops":[
["alloc",1,3000,0,4194304,[1,2097152,0]],
["alloc",2,5000000,0,8388608,[2,23068672,0]],
["oom",3,20971520,0,"CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 1024.00 MiB of which 9.00 MiB is free. 32.00 MiB allowed; Of the allocated memory 4.77 MiB is allocated by PyTorch, and 17.23 MiB is reserved by PyTorch but unallocated.",[2,23068672,1]],
["free",2,[1,23068672,1]],["empty_cache",[1,2097152,1]]],
"segment_events":[["segment_alloc",4194304,2097152,0],["segment_alloc",8388608,20971520,0],["segment_free",8388608,20971520,0]],
"final_segments":[{"address":4194304,"total_size":2097152,"allocated_size":3072,"active_size":3072,"requested_size":3000,
"segment_type":"small","is_expandable":false,"stream":0,"blocks":[[4194304,3072,3000,"active_allocated"],[4197376,2094080,0,"inactive"]]}]}"#;
    assert!(from.is_empty() || whole.contains(from), "{from}");
    if from.is_empty() { whole.to_owned() } else { whole.replacen(from, to, 1) }
}

#[test]
fn every_kind_of_difference_is_detected() {
    let report = replay_bytes(tampered("", "").as_bytes()).unwrap();
    assert_eq!((report.operations, report.mismatches, report.first), (5, 0, None));
    for (from, to, message) in [
        ("[1,2097152,0]]", "[1,2097153,0]]", "reserved_bytes.all.current is 2097152, recorded 2097153"),
        (",4194304,[1", ",4194816,[1", "address is 0x400000, recorded 0x400200"),
        (
            "\"alloc\",2,5000000,0",
            "\"alloc\",2,5000000,7",
            "was requested where the recording has segment_alloc",
        ),
        ("8388608,20971520,0],[\"segment_free", "8388608,20971521,0],[\"segment_free", "was requested where"),
        (",[\"segment_free\",8388608,20971520,0]", "", "segment_free of 20,971,520 bytes at 0x800000"),
        (
            "20971520,0]]",
            "20971520,0],[\"segment_alloc\",1,2,0]]",
            "1 recorded segment events did not happen",
        ),
        ("32.00 MiB allowed", "33.00 MiB allowed", "`32.00 MiB allowed; ` is not in the recorded error"),
        ("17.23 MiB", "17.24 MiB", "17.23 MiB"),
        ("20971520,0,\"CUDA", "2097152,0,\"CUDA", "succeeded, recorded out of memory"),
        ("4197376,2094080,0", "4197376,2094080,5", "segment is"),
        ("\"segment_type\":\"small\"", "\"segment_type\":\"large\"", "segment is"),
        ("num_ooms\"]", "num_bees\"]", "num_bees is not counted"),
        ("\"alloc_conf\":\"\"", "\"alloc_conf\":\"tea:1\"", "there is no such key"),
    ] {
        let report = replay_bytes(tampered(from, to).as_bytes()).unwrap();
        assert!(report.mismatches > 0, "{from} -> {to}");
        let first = report.first.unwrap();
        assert!(first.contains(message), "{from} -> {to}: {first}");
    }
}

#[test]
fn a_changed_counter_in_a_real_recording_is_located() {
    let path = golden().into_iter().find(|path| path.ends_with("vectors-2.11.0.jsonl.gz")).unwrap();
    let scenarios: Vec<Recording> = read(&path).unwrap();
    assert_eq!(scenarios.len(), 25);
    assert!(
        scenarios
            .iter()
            .any(|s| s.steps.iter().any(|step| matches!(step.operation, Operation::BeginPool(..))))
    );
    let mut packed = std::fs::File::open(&path).map(flate2::read::GzDecoder::new).unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut packed, &mut text).unwrap();
    let changed = text.replacen("[118, 2]", "[118, 3]", 1).replacen("[118,2]", "[118,3]", 1);
    assert_ne!(changed, text);
    let report = replay_bytes(changed.as_bytes()).unwrap();
    assert!(report.mismatches > 0);
    assert!(report.first.unwrap().contains("num_sync_all_streams"));
}

#[test]
fn files_that_are_not_recordings_are_refused() {
    let cases: [(&[u8], &str); 10] = [
        (b"", "empty"),
        (b"\n \n", "empty"),
        (b"hello", "expected"),
        (b"{}", "missing"),
        (b"[1, 2]", "missing"),
        (b"\xff\xfe", "not text"),
        (b"\x1f\x8b\x08", "unpack"),
        (b"{\"stat_names\": 5}", "not a list"),
        (b"{\"device_total\": 1, \"name\": \"n\", \"ops\": [{\"op\": \"dance\", \"d\": []}], \"final_segments\": []}", "dance"),
        (b"{\"device_total\": 1, \"name\": \"n\", \"ops\": [{\"op\": \"f p\", \"d\": [[121, 0]]}]}", "no counter 121"),
    ];
    for (bytes, message) in cases {
        let error = parse(bytes).unwrap_err().to_string();
        assert!(error.contains(message), "{}: {error}", String::from_utf8_lossy(bytes));
    }
    assert!(replay(Path::new("/nowhere/at/all")).unwrap_err().to_string().contains("cannot be read"));
}
