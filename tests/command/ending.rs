//! Tests of how the process ends.

use std::process::Command;

use crate::common::{self, library};

/// Source of a library whose exit handler crashes.
const LIBRARY: &str = "#include <stdlib.h>\n__attribute__((destructor)) static void end(void) { abort(); }\n";

#[test]
fn exit_handlers_of_libraries_are_not_run() {
    let directory = tempfile::tempdir().unwrap();
    let Some(library) = library::compiled(directory.path(), LIBRARY) else { return };
    for (argument, status) in [("--version", 0), ("--no-such-flag", 2)] {
        let output = Command::new(common::program()).arg(argument).env("LD_PRELOAD", &library).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        assert!(output.stdout.len() + output.stderr.len() > 10, "{output:?}");
    }
}
