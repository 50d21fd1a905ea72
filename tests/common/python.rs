//! Finds a Python with the modules that a comparison needs.

use std::process::Command;

use system::skipped::{self, Need};

/// Returns a Python with all of `modules`: PLIMSOLL_PYTHON, or the one on the path. If there is none, returns
/// `None` and reports the test as skipped.
pub(crate) fn python_with(modules: &[&str]) -> Option<String> {
    let python = std::env::var("PLIMSOLL_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has = |names: &str| {
        let tried = Command::new(&python).args(["-c", &format!("import {names}")]).output();
        tried.is_ok_and(|output| output.status.success())
    };
    if has(&modules.join(", ")) {
        return Some(python);
    }
    for module in modules.iter().filter(|module| !has(module)) {
        skipped::report(Need::Python(module), &format!("{python} lacks it (pip install {module})"));
    }
    None
}
