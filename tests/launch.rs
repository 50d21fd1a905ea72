//! Tests of `launch/test` with stand-ins for its tools: it runs to its end and lists every failure.

use std::path::Path;
use std::process::{Command, Output};

use crate::common::scripts;

/// Runs the script with a stand-in for cargo, whose body is `cargo`.
fn launch_test(cargo: &str, arguments: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    for tool in ["launch/setup", "launch/wheel", "bin/shellcheck", ".ci/run"] {
        scripts::write(&path(tool), "exit 0");
    }
    scripts::write(&path("bin/cargo"), cargo);
    for name in ["test", "skipped"] {
        scripts::copy(&Path::new("launch").join(name), &path("launch").join(name));
    }
    let search = format!("{}:{}", path("bin").display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(path("launch/test"));
    command.args(arguments).env("PATH", search).env("PLIMSOLL_NO_WHEEL", "1").output().unwrap()
}

/// Returns the body of a cargo stand-in that "builds" a test program with the body `program`.
fn built(program: &str) -> String {
    let artifact = r#"{"manifest_path":"'$PWD'/Cargo.toml","target":{"test":true},"profile":{"debuginfo":0,"test":TEST},"executable":"'$PWD'/PROGRAM"}"#;
    format!(
        "case \" $* \" in *' --no-run '*)\nprintf '#!/bin/bash\\n%s\\n' '{program}' >program; chmod +x program\n\
         echo '{}'; echo '{}';; esac",
        artifact.replace("TEST", "true").replace("PROGRAM", "program"),
        // The tested program is built too, and is not a test.
        artifact.replace("TEST", "false").replace("PROGRAM", "not-a-test"),
    )
}

#[test]
fn every_failure_is_listed_at_the_end() {
    const TESTS: &str = "echo test one::works ... ok; echo test two::breaks ... FAILED\n\
                         echo test three ... FAILED; exit 101";
    let passed = launch_test("exit 0", &["--all"]);
    let printed = String::from_utf8_lossy(&passed.stdout).into_owned();
    assert!(passed.status.success() && printed.contains("launch/test: all "), "{printed}");
    let failed =
        launch_test(&format!("case $1 in fmt) exit 1;; doc) exit 101;; esac\n{}", built(TESTS)), &["--all"]);
    assert_eq!(failed.status.code(), Some(1));
    let message = String::from_utf8_lossy(&failed.stderr).into_owned();
    let listed = message.split("launch/test: FAILED").nth(1).unwrap_or_default();
    let names: Vec<&str> = listed.lines().skip(1).map(str::trim).collect();
    assert_eq!(&names[..5], ["format", "test three", "test two::breaks", "tests", "documents"], "{message}");
    // Later checks ran despite the failures.
    let printed = String::from_utf8_lossy(&failed.stdout).into_owned();
    assert!(printed.contains("test one::works ... ok\n"), "{printed}");
    assert!(printed.contains("== scripts") && printed.contains("== documents"), "{printed}");
}

/// Checks that a test program that ends without output is itself listed.
#[test]
fn a_program_of_tests_that_crashes_is_listed() {
    let failed = launch_test(&built("kill -9 $$"), &[]);
    let message = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(failed.status.code() == Some(1) && message.contains("  test program\n  tests\n"), "{message}");
}

#[test]
fn only_the_tests_run_unless_all_is_asked_for() {
    let passed = launch_test("case $1 in test) exit 0;; *) exit 1;; esac", &[]);
    let printed = String::from_utf8_lossy(&passed.stdout).into_owned();
    assert!(passed.status.success() && printed.contains("== tests"), "{printed}");
    assert!(!printed.contains("== format"), "{printed}");
    assert_eq!(launch_test("exit 0", &["--everything"]).status.code(), Some(2));
}

/// Checks that arguments before the command go to mpirun, and the command with its arguments to the program.
#[test]
fn every_command_that_runs_on_ranks_is_started_by_mpirun() {
    let directory = tempfile::tempdir().unwrap();
    let mpirun = directory.path().join("mpirun");
    scripts::write(&mpirun, "printf '%s ' \"$@\"");
    let started = |arguments: &[&str]| {
        let mut command = Command::new("launch/mpirun");
        command.args(arguments).env("MPIRUN", &mpirun).env("PLIMSOLL", "plimsoll").output().unwrap()
    };
    for command in ["train", "eval", "sample", "bench", "plan"] {
        let output = started(&["-n", "2", command, "runs/a", "--step", "best"]);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(printed.trim(), format!("-n 2 plimsoll {command} runs/a --step best"));
    }
    let refused = started(&["-n", "2", "export", "runs/a"]);
    assert_eq!(refused.status.code(), Some(2));
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(message.contains("export runs/a: no command that runs on ranks: train, eval"), "{message}");
}

#[test]
fn skipped_tests_are_counted_and_fail_if_they_are_asked_for() {
    let cargo = r#"case $1 in test)
printf 'gpu\ta GPU\tone::works\n' >>"$PLIMSOLL_SKIPPED"
printf 'gpu\ta GPU\tone::works\ngpu\ta GPU\ttwo::works\n' >>"$PLIMSOLL_SKIPPED"
printf 'python\ttorch\tthree::works\n' >>"$PLIMSOLL_SKIPPED";;
esac"#;
    for (arguments, status) in [
        (&[][..], 0),
        (&["--need", "mpi"], 0),
        (&["--need=mpi,python"], 1),
        (&["--all", "--need", "gpu,python"], 1),
        (&["--need", "tpu"], 2),
        (&["--need"], 1),
    ] {
        let output = launch_test(cargo, arguments);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {printed}");
        let is_run = !matches!(arguments, ["--need", "tpu"] | ["--need"]);
        let counts = printed.contains("2 need a GPU") && printed.contains("1 need torch");
        assert_eq!(counts, is_run, "{arguments:?}: {printed}");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(message.contains("skipped tests"), is_run && status == 1, "{arguments:?}: {message}");
    }
}
