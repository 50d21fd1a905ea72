//! Tests of `plimsoll bench attention`, `plimsoll bench experts` and `plimsoll bench recurrence`.

use std::path::Path;

use super::{plimsoll, text};

#[test]
fn attention_is_measured_by_head_width() {
    let bench = |arguments: &[&str]| {
        let always = ["bench", "attention", "--device", "cpu", "--batch", "1", "--calls", "1"];
        plimsoll(Path::new(".")).args(always).args(arguments).output().unwrap()
    };
    let sizes =
        ["--positions", "9", "--pieces", "3", "--head-widths", "8,4", "--columns", "17", "--window", "3"];
    let output = bench(&[&sizes[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let lines: Vec<serde_json::Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let heads = lines.iter().map(|line| [&line["head_width"], &line["heads"], &line["window"]]);
    let heads: Vec<_> = heads.map(|cells| cells.map(|cell| cell.as_u64().unwrap())).collect();
    assert_eq!(heads, [[8, 2, 3], [4, 4, 3]]);
    assert!(lines.iter().all(|line| line["backward_milliseconds"].as_f64().unwrap() > 0.0));
    let shared = ["--precision", "bf16", "--heads", "4", "--key-value-heads", "2", "--value-width", "5"];
    let output = bench(&[&["--positions", "9", "--head-widths", "8"], &shared[..]].concat());
    assert!(text(&output.stdout).contains("causal attention, bf16, 1 × 9 positions"), "{output:?}");
    let wrong: [&[&str]; 6] = [
        &["--heads", "4", "--key-value-heads", "3"],
        &["--heads", "4", "--columns", "64"],
        &["--positions", "0"],
        &["--positions", "9", "--pieces", "2"],
        &["--precision", "f64"],
        &["--positions", "16777216", "--head-widths", "16777216"],
    ];
    for wrong in wrong {
        assert_eq!(bench(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn matmuls_of_experts_are_measured_by_the_spread_of_rows() {
    let bench = |arguments: &[&str]| {
        let always =
            ["bench", "experts", "--device", "cpu", "--calls", "1", "--experts", "4", "--rows", "128"];
        let sizes = ["--outputs", "32", "--inputs", "16"];
        plimsoll(Path::new(".")).args(always).args(sizes).args(arguments).output().unwrap()
    };
    for precision in ["f32", "bf16", "fp8"] {
        let output = bench(&["--precision", precision, "--json"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let lines: Vec<serde_json::Value> =
            text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let spreads: Vec<_> = lines.iter().map(|line| line["spread"].as_str().unwrap()).collect();
        assert_eq!(spreads, ["balanced", "skewed", "one"]);
        assert!(lines.iter().all(|line| line["weight_f32_milliseconds"].as_f64().unwrap() > 0.0));
    }
    let output = bench(&["--spreads", "one"]);
    assert!(text(&output.stdout).contains("4 experts of 32 × 16, f32, about 128 rows"), "{output:?}");
    let wrong: [&[&str]; 4] =
        [&["--spreads", "even"], &["--precision", "f64"], &["--calls", "0"], &["--device", "meta"]];
    for wrong in wrong {
        assert_eq!(bench(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn recurrent_operators_are_measured() {
    let bench = |arguments: &[&str]| {
        let always = ["bench", "recurrence", "--device", "cpu", "--batch", "1", "--calls", "1"];
        let sizes = ["--positions", "70", "--heads", "2", "--width", "8"];
        plimsoll(Path::new(".")).args(always).args(sizes).args(arguments).output().unwrap()
    };
    let all = ["--operators", "delta,delta-by-channel,scan", "--key-heads", "1", "--value-width", "16"];
    let output = bench(&[&all[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let lines: Vec<serde_json::Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let operators: Vec<_> = lines.iter().map(|line| line["operator"].as_str().unwrap()).collect();
    assert_eq!(operators, ["delta", "delta-by-channel", "scan"]);
    assert!(lines.iter().all(|line| line["backward_milliseconds"].as_f64().unwrap() > 0.0));
    let output = bench(&[]);
    assert!(text(&output.stdout).contains("f32, 1 × 70 positions, 2 heads (2 of keys) of 8/8"), "{output:?}");
    let wrong: [&[&str]; 3] =
        [&["--operators", "attention"], &["--key-heads", "3"], &["--width", "1099511627776"]];
    for wrong in wrong {
        assert_eq!(bench(wrong).status.code(), Some(2), "{wrong:?}");
    }
}
