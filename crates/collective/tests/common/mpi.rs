//! Starts jobs of this test program's own processes with `mpirun`.

use std::io::ErrorKind;
use std::process::{Command, Output};

use system::skipped::{self, Need};

/// Environment variable that names the body to run in a job's processes.
pub(crate) const SCENARIO: &str = "PLIMSOLL_TEST_SCENARIO";

/// Runs the ignored test `test` of this program as every rank of a job. Without `mpirun`, returns `None` and
/// reports that on standard error. Ranks ignore the SIGTERM that `mpirun` sends when a rank has died; SIGKILL
/// follows a second later.
pub(crate) fn launched(ranks: usize, test: &str, scenario: &str) -> Option<Output> {
    let program = std::env::current_exe().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new("mpirun");
    // Jobs that create the same session directory at once fail.
    command.env("OMPI_MCA_orte_tmpdir_base", directory.path());
    command
        .args(["-n", &ranks.to_string()])
        .args(["sh", "-c", "trap '' TERM; exec \"$@\"", "rank"])
        .arg(program);
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]).env(SCENARIO, scenario);
    // Needed as superuser, on few processors, and on machines without ssh.
    for variable in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
        command.env(variable, "1");
    }
    command.env("OMPI_MCA_rmaps_base_oversubscribe", "1").env("OMPI_MCA_plm", "isolated");
    match command.output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            skipped::report(Need::Mpi, "mpirun is not installed");
            None
        }
        Err(error) => panic!("mpirun: {error}"),
    }
}

/// Returns standard output and standard error together.
pub(crate) fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
