//! Tests of plans and runs under a limit on address space, `ulimit -v` or `ulimit -d`.

use std::path::Path;
use std::process::{Command, Output};

use super::json;
use crate::common::jobs::{text, workplace};
use crate::common::program;

/// Runs a command under a limit on address space in KiB, such as `-v 4000000`.
fn limited(directory: &Path, limit: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new("bash");
    command.args(["-c", &format!("ulimit {limit}; exec \"$@\""), "sh"]).arg(program());
    command.args(arguments).current_dir(directory).env("CUDA_VISIBLE_DEVICES", "").output().unwrap()
}

/// Checks that the limit is the planned capacity, and that no larger range of addresses is reserved.
#[test]
fn a_limit_on_addresses_is_the_capacity() {
    for kind in ["-v", "-d"] {
        let directory = workplace();
        let limited = |kibibytes: u64, arguments: &[&str]| {
            limited(directory.path(), &format!("{kind} {kibibytes}"), arguments)
        };
        let plan = limited(4_000_000, &["plan", "run.toml", "--device", "cpu", "--json"]);
        assert_eq!(json(&plan)["fit"]["capacity_bytes"], 4_000_000 * 1024_u64);
        let train =
            ["train", "run.toml", "--device", "cpu", "--run-dir", "limited", "--set", "train.steps=2"];
        let output = limited(4_000_000, &train);
        assert!(output.status.success(), "{}", text(&output.stderr));
        // With little space, a run trains to its end or is refused before it begins.
        let mut endings = Vec::new();
        for (number, kibibytes) in [120_000, 150_000, 200_000, 250_000, 300_000].into_iter().enumerate() {
            let run = format!("little-{number}");
            let output = limited(kibibytes, &[&train[..5], &[&*run], &train[6..]].concat());
            let (message, begun) =
                (text(&output.stderr), directory.path().join(&run).join("metrics.jsonl").exists());
            let ending = output.status.code();
            assert_eq!(
                (ending == Some(0), ending),
                (begun, Some(if begun { 0 } else { 2 })),
                "{kind} {kibibytes}: {message}"
            );
            assert!(!message.contains("not written"), "{kind} {kibibytes}: {message}");
            endings.push(begun);
        }
        assert!(endings.is_sorted() && endings[4], "{kind}: {endings:?}");
        let wide = ["--set", "model.width=4096", "--set", "model.layers=8"];
        let refused = limited(4_000_000, &[&["plan", "run.toml", "--device", "cpu"][..], &wide].concat());
        let table = text(&refused.stdout);
        let limit = format!("the limit of ulimit {kind}");
        assert!(refused.status.code() == Some(1) && table.contains(&limit), "{table}");
    }
}

/// Checks that a run directory keeps the settings as written, so that a limit set later still affects the
/// allocator's default.
#[test]
fn a_run_is_used_under_a_limit_on_addresses_that_came_later() {
    let directory = workplace();
    let path = directory.path();
    let train = ["train", "run.toml", "--device", "cpu", "--run-dir", "run", "--set", "checkpoint.every=1"];
    let output = limited(path, "-c 0", &[&train[..], &["--set", "train.steps=2"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let commands: [&[&str]; 4] = [
        &[
            "train",
            "run/config.toml",
            "--device",
            "cpu",
            "--run-dir",
            "run",
            "--resume",
            "--set",
            "train.steps=3",
        ],
        &["plan", "run/config.toml", "--device", "cpu"],
        &["sample", "run", "--device", "cpu", "--tokens", "3"],
        &["eval", "run", "--device", "cpu"],
    ];
    for limit in ["-v 4000000", "-d 4000000"] {
        for command in commands {
            let output = limited(path, limit, command);
            assert!(output.status.success(), "{limit} {command:?}: {}", text(&output.stderr));
        }
        // Impossible settings are refused before anything is allocated, also by the plan.
        for command in [&["plan", "run.toml"][..], &["train", "run.toml", "--run-dir", "none"]] {
            let set = ["--device", "cpu", "--set", "memory.allocator=expandable_segments:True"];
            let output = limited(path, limit, &[command, &set].concat());
            let message = text(&output.stderr);
            let expected = format!("reserves more addresses than ulimit {}", &limit[..2]);
            assert!(output.status.code() == Some(2) && message.contains(&expected), "{limit}: {message}");
        }
    }
}
