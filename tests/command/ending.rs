//! The end of the process.

use std::process::Command;

use system::skipped::{self, Need};

use super::common;

/// A library whose exit handler crashes.
const LIBRARY: &str = "#include <stdlib.h>\n__attribute__((destructor)) static void end(void) { abort(); }\n";

#[test]
fn exit_handlers_of_libraries_are_not_run() {
    let directory = tempfile::tempdir().unwrap();
    let (source, library) = (directory.path().join("crash.c"), directory.path().join("crash.so"));
    std::fs::write(&source, LIBRARY).unwrap();
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    if !compiled.is_ok_and(|status| status.success()) {
        skipped::report(Need::Other("a C compiler"), "cc cannot be run");
        return;
    }
    for (argument, status) in [("--version", 0), ("--no-such-flag", 2)] {
        let output = Command::new(common::program()).arg(argument).env("LD_PRELOAD", &library).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        assert!(output.stdout.len() + output.stderr.len() > 10, "{output:?}");
    }
}
