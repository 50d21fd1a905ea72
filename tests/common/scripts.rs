//! Creates scripts that stand in for programs.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes an executable bash script, and creates its directory.
///
/// Another process writes the file: a file that is open for writing cannot be executed, and a process that
/// another test starts meanwhile would inherit this process's open files.
pub(crate) fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", "cat >\"$0\" && chmod 755 \"$0\""]).arg(path).stdin(Stdio::piped());
    let mut writer = shell.spawn().unwrap();
    write!(writer.stdin.take().unwrap(), "#!/bin/bash\n{text}\n").unwrap();
    assert!(writer.wait().unwrap().success(), "{}", path.display());
}

/// Copies an executable file, for the same reason in another process.
pub(crate) fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").args([from, to]).status().unwrap().success(), "{}", from.display());
}
