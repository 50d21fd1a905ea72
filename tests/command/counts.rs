//! Tests of counts and sizes on the command line.

use super::{plimsoll, text};

#[test]
fn a_count_of_nothing_is_refused_by_the_name_of_its_option() {
    let directory = tempfile::tempdir().unwrap();
    for (command, option) in [
        (&["bench", "step"][..], "--steps"),
        (&["bench", "step"], "--micro-batch-size"),
        (&["bench", "sample"], "--rounds"),
        (&["bench", "matmul"], "--candidates"),
        (&["bench", "pipeline"], "--micro-batches"),
        (&["bench", "scaling"], "--ranks"),
        (&["bench", "collective"], "--milliseconds"),
        (&["bench", "predict"], "--steps"),
        (&["bench", "allocator"], "--rounds"),
        (&["train"], "--ranks"),
        (&["launch"], "--restarts"),
    ] {
        for (value, reason) in [("0", "not a number from 1 to 16777216"), ("many", "not a number from 1")] {
            let output = plimsoll(directory.path()).args(command).args([option, value]).output().unwrap();
            let error = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{command:?} {option} {value}: {error}");
            assert!(error.contains(&format!("'{value}' for '{option} <")), "{command:?}: {error}");
            assert!(error.contains(reason), "{command:?}: {error}");
        }
    }
}
