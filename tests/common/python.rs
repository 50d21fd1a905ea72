//! Python with what a comparison needs.

use std::io::Write;
use std::process::Command;

/// Returns Python with all of `modules`, from the environment's PLIMSOLL_PYTHON or the path; prints that the
/// test is skipped if there is none.
pub(crate) fn python_with(modules: &[&str]) -> Option<String> {
    let python = std::env::var("PLIMSOLL_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let tried = Command::new(&python).args(["-c", &format!("import {}", modules.join(", "))]).output();
    let found = tried.is_ok_and(|output| output.status.success());
    if !found {
        let all = modules.join(" and ");
        let _ =
            writeln!(std::io::stderr(), "skipped: {python} has no {all} (pip install {})", modules.join(" "));
    }
    found.then_some(python)
}
