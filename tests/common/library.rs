//! Compiles shared libraries that tests load into the program.

use std::path::{Path, PathBuf};
use std::process::Command;

use system::skipped::{self, Need};

/// Compiles C to a shared library in `directory`. Without a compiler, returns `None` and reports the test as
/// skipped.
pub(crate) fn compiled(directory: &Path, source: &str) -> Option<PathBuf> {
    let file = directory.join("library.c");
    let library = directory.join("library.so");
    std::fs::write(&file, source).unwrap();
    let status = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &file]).status();
    if status.is_ok_and(|status| status.success()) {
        return Some(library);
    }
    skipped::report(Need::Other("a C compiler"), "cc cannot be run");
    None
}
