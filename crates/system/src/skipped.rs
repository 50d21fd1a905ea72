//! Reports tests that are skipped, entirely or on one device, because this machine lacks something.
//!
//! A skipped test passes, so each is reported on standard error. If the environment variable [`VARIABLE`] is
//! set, reports are also appended to a file, which `launch/test` counts.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// Environment variable with the path of that file.
pub const VARIABLE: &str = "PLIMSOLL_SKIPPED";

/// A requirement of a test that a machine may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need<'a> {
    /// One or more GPUs.
    Gpu,
    /// An MPI build and MPI's launcher.
    Mpi,
    /// A Python module.
    Python(&'a str),
    /// A program, a library or a permission.
    Other(&'a str),
}

impl Need<'_> {
    /// Returns the requirement's group, as used by `launch/test --need`.
    fn group(self) -> &'static str {
        match self {
            Need::Gpu => "gpu",
            Need::Mpi => "mpi",
            Need::Python(_) => "python",
            Need::Other(_) => "other",
        }
    }
}

impl fmt::Display for Need<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Need::Gpu => f.write_str("a GPU"),
            Need::Mpi => f.write_str("MPI"),
            Need::Python(name) | Need::Other(name) => f.write_str(name),
        }
    }
}

/// Reports that the test on this thread, or a part of it, is skipped. `why` describes what was found instead.
/// A test is reported once per requirement.
pub fn report(need: Need<'_>, why: &str) {
    static REPORTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let line = line(need, &test());
    if !REPORTED.lock().unwrap_or_else(PoisonError::into_inner).insert(line.clone()) {
        return;
    }
    // Not with `eprintln`, whose output the test runner keeps for failures.
    let _ = writeln!(std::io::stderr(), "skipped: {} needs {need}: {why}", test());
    let Some(path) = std::env::var_os(VARIABLE) else { return };
    let opened = OpenOptions::new().append(true).create(true).open(path);
    // A single write, because other tests append at the same time. A lost line makes a skipped test look run,
    // so a failure is reported.
    if let Err(error) = opened.and_then(|mut file| file.write_all(line.as_bytes())) {
        let _ = writeln!(std::io::stderr(), "skipped: {VARIABLE}: {error}");
    }
}

/// Returns the name of the test on this thread, with its program.
fn test() -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let program = program.file_stem().unwrap_or_default().to_string_lossy();
    // Cargo adds a hash.
    let program = program.rsplit_once('-').map_or(&*program, |(name, _)| name);
    let thread = std::thread::current();
    format!("{program}::{}", thread.name().unwrap_or("main"))
}

/// Returns a line of the file: the group, the requirement and the test.
fn line(need: Need<'_>, test: &str) -> String {
    format!("{}\t{need}\t{test}\n", need.group())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_tell_the_need_and_the_test() {
        let test = test();
        assert!(test.ends_with("::skipped::tests::lines_tell_the_need_and_the_test"), "{test}");
        for (need, expected) in [
            (Need::Gpu, "gpu\ta GPU\tt\n"),
            (Need::Mpi, "mpi\tMPI\tt\n"),
            (Need::Python("torch"), "python\ttorch\tt\n"),
            (Need::Other("a C compiler"), "other\ta C compiler\tt\n"),
        ] {
            assert_eq!(line(need, "t"), expected);
        }
    }
}
