//! Runs the program as processes: one with its ranks as threads, or a job over TCP or MPI.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use device::Category;
use system::skipped::{self, Need};
use telemetry::step_trace::{RankTraces, StepTrace};

pub(crate) use super::ports::free_port;
use super::program;
use super::runs::GPT;

/// How ranks are run: as threads, or as processes over TCP or MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Threads,
    Tcp,
    Mpi,
}

impl Transport {
    /// Returns the transports that can be tested here; reports the others as skipped.
    pub(crate) fn all() -> Vec<Transport> {
        [vec![Transport::Threads], Self::of_processes()].concat()
    }

    /// Returns the transports between processes that can be tested here; reports the others as skipped.
    pub(crate) fn of_processes() -> Vec<Transport> {
        let mut all = vec![Transport::Tcp];
        all.extend(has_mpi().then_some(Transport::Mpi));
        all
    }
}

/// Variables of launchers and users, which tests must not inherit.
pub(crate) const FOREIGN: [&str; 9] = [
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "SLURM_STEP_ID",
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "PLIMSOLL_PORT",
    "PLIMSOLL_SECRET",
    "PLIMSOLL_ALLOC_CONF",
];

/// Returns whether this build has MPI and this machine has a launcher; if not, reports the test as skipped.
pub(crate) fn has_mpi() -> bool {
    let why = match Command::new("mpirun").arg("--version").output() {
        _ if !cfg!(feature = "mpi") => "this build has no MPI",
        Err(error) if error.kind() == ErrorKind::NotFound => "there is no mpirun",
        _ => return true,
    };
    skipped::report(Need::Mpi, why);
    false
}

/// Creates a directory with a corpus and a configuration, `run.toml`.
pub(crate) fn workplace() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let line = "The load line of a ship says how much she may carry, and in which waters.\n";
    std::fs::write(directory.path().join("corpus.txt"), line.repeat(100)).unwrap();
    let paths = r#"paths = ["ARCHITECTURE.md", "crates/tensor/src/*.rs"]"#;
    assert!(GPT.contains(paths));
    std::fs::write(directory.path().join("run.toml"), GPT.replace(paths, r#"paths = ["corpus.txt"]"#))
        .unwrap();
    directory
}

/// Creates a command in `directory` without environment variables of launchers and users.
pub(crate) fn clean(program: impl AsRef<std::ffi::OsStr>, directory: &Path) -> Command {
    let mut command = Command::new(program);
    // These tests use the CPU even on hosts with a GPU.
    command.current_dir(directory).stdin(Stdio::null()).env("CUDA_VISIBLE_DEVICES", "");
    // Open MPI's daemons fail if two jobs create the same session directory at the same time.
    command.env("OMPI_MCA_orte_tmpdir_base", directory);
    // Waiting ranks yield the few processors to other tests.
    command.env("OMPI_MCA_mpi_yield_when_idle", "1");
    for variable in FOREIGN {
        command.env_remove(variable);
    }
    command
}

/// Creates a command for `ranks` ranks over TCP, started by a script that sets torchrun's variables. The
/// program to run follows as arguments.
pub(crate) fn over_tcp(directory: &Path, ranks: usize) -> Command {
    let mut command = clean(super::root().join("tests/common/ranks"), directory);
    command.env("MASTER_PORT", free_port().to_string()).arg(ranks.to_string());
    command
}

/// Like [`over_tcp`], on two hosts simulated by network namespaces, `first` and `second`, with `ranks` each.
/// Creating the file `cut` disconnects the hosts. If that is impossible, returns `None` and reports the test
/// as skipped.
pub(crate) fn two_namespaces(directory: &Path, ranks: usize) -> Option<Command> {
    let script = super::root().join("tests/common/namespaces");
    if !Command::new(&script).args(["1", "true"]).env("MASTER_PORT", "1").status().unwrap().success() {
        skipped::report(Need::Other("network namespaces"), "they take user namespaces, unshare and ip");
        return None;
    }
    let mut command = clean(script, directory);
    command.env("MASTER_PORT", "29500").env("PLIMSOLL_SECRET", "the secret of these tests");
    command.env("CUT", directory.join("cut")).arg(ranks.to_string()).arg(program());
    Some(command)
}

/// Creates a command with interrupts enabled, which shells disable for background processes.
pub(crate) fn interruptible(program: impl AsRef<std::ffi::OsStr>, directory: &Path) -> Command {
    let mut command = clean("env", directory);
    command.arg("--default-signal=INT").arg(program);
    command
}

/// Creates an `mpirun` command with the settings for root, few processors and no ssh.
pub(crate) fn mpirun(directory: &Path) -> Command {
    let mut command = clean("mpirun", directory);
    for variable in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
        command.env(variable, "1");
    }
    command.env("OMPI_MCA_rmaps_base_oversubscribe", "1").env("OMPI_MCA_plm", "isolated");
    command
}

/// Like [`mpirun`], on two simulated hosts, `first` and `second`, with `ranks` each. If that is impossible,
/// returns `None` and reports the test as skipped.
pub(crate) fn two_hosts(directory: &Path, ranks: usize) -> Option<Command> {
    let script = super::root().join("tests/common/hosts");
    let can = has_mpi() && Command::new(&script).args(["1", "true"]).output().unwrap().status.success();
    if !can {
        skipped::report(Need::Other("faked hosts"), "they take mpirun and user namespaces");
        return None;
    }
    let mut command = clean(script, directory);
    command.arg(ranks.to_string()).arg(program());
    Some(command)
}

/// Returns the start of a command line: empty, or the launcher of `ranks` processes.
pub(crate) fn launcher(transport: Transport, directory: &Path, ranks: usize) -> Command {
    match transport {
        Transport::Threads => clean("env", directory),
        Transport::Tcp => over_tcp(directory, ranks),
        Transport::Mpi => {
            let mut command = mpirun(directory);
            command.args(["-n", &ranks.to_string()]);
            command
        }
    }
}

/// Creates the command `plimsoll train run.toml --run-dir out` on `ranks` ranks.
pub(crate) fn train(transport: Transport, directory: &Path, ranks: usize, sets: &[&str]) -> Command {
    let mut command = launcher(transport, directory, ranks);
    command.arg(program()).args(arguments(ranks, sets));
    command
}

/// Returns the arguments of [`train`].
pub(crate) fn arguments(ranks: usize, sets: &[&str]) -> Vec<String> {
    let mut arguments: Vec<String> = ["train", "run.toml", "--run-dir", "out"].map(str::to_owned).to_vec();
    for set in [format!("parallel.data={ranks}").as_str()].iter().chain(sets) {
        arguments.extend(["--set".to_owned(), (*set).to_owned()]);
    }
    arguments
}

/// Runs [`train`] to its end, and checks that every rank's memory was as planned. Returns the bits of every
/// step's loss, and the hash of the weights.
pub(crate) fn history(transport: Transport, ranks: usize, sets: &[&str]) -> (Vec<u64>, String) {
    let workplace = workplace();
    let output = train(transport, workplace.path(), ranks, sets).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{transport:?}, {ranks} ranks: {}", text(&output.stderr));
    let summary = summary(&workplace.path().join("out"));
    assert_eq!(summary["world_size"], ranks);
    assert_eq!(summary["ranks"].as_array().unwrap().len(), ranks);
    assert!(text(&output.stdout).contains("Every rank used what was planned"), "{}", text(&output.stdout));
    // Every process has a plan and is compared with it.
    assert_eq!(summary["divergences"], serde_json::json!([]));
    for rank in 0..ranks {
        let path = workplace.path().join(format!("out/traces/rank-{rank}.json.gz"));
        let traces = RankTraces::read(&path).unwrap();
        let measured = without_weights_of_state(traces.steady.measured.as_ref().unwrap());
        let planned = traces.steady.planned().map(without_weights_of_state);
        assert!(planned == Some(measured) && traces.rank == rank, "rank {rank} of {ranks}, {transport:?}");
    }
    let losses = summary["losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap().to_bits());
    (losses.collect(), summary["weights_sha256"].as_str().unwrap().to_owned())
}

/// Removes the names of the weights whose optimizer state a rank has. Ranks with shards of equal sizes share
/// a plan, which names the first rank's weights.
fn without_weights_of_state(trace: &StepTrace) -> StepTrace {
    let mut trace = trace.clone();
    let of_state = trace.owners.iter_mut().filter(|owner| owner.category == Category::OptimizerState);
    of_state.for_each(|owner| owner.module.clear());
    trace
}

/// Runs a command to its end. Returns its run's losses and weights, and the host of each rank.
pub(crate) fn outcome(mut command: Command, directory: &Path) -> ([String; 2], Vec<String>) {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let summary = summary(&directory.join("out"));
    let hosts =
        summary["ranks"].as_array().unwrap().iter().map(|rank| rank["host"].as_str().unwrap().to_owned());
    (["losses", "weights_sha256"].map(|key| summary[key].to_string()), hosts.collect())
}

/// A run in progress.
pub(crate) struct Running {
    child: Child,
    pub(crate) run_dir: PathBuf,
}

impl Running {
    /// Starts the run and waits until it has done some steps.
    pub(crate) fn start(transport: Transport, directory: &Path, ranks: usize, sets: &[&str]) -> Self {
        Self::wait(train(transport, directory, ranks, &[&["train.steps=1000000"], sets].concat()), directory)
    }

    /// Like [`Running::start`], through `launch/mpirun`.
    pub(crate) fn start_by_script(directory: &Path, ranks: usize, sets: &[&str]) -> Self {
        let mut command = interruptible(super::root().join("launch/mpirun"), directory);
        command.env("PLIMSOLL", program()).args(["-n", &ranks.to_string()]);
        command.args(arguments(ranks, &[&["train.steps=1000000"], sets].concat()));
        Self::wait(command, directory)
    }

    /// Starts a command that trains in `directory`, and waits until it has done some steps.
    pub(crate) fn wait(mut command: Command, directory: &Path) -> Self {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut running = Running { child, run_dir: directory.join("out") };
        let deadline = Instant::now() + Duration::from_secs(600);
        while running.steps() < 3 {
            assert!(Instant::now() < deadline, "no third step");
            if running.child.try_wait().unwrap().is_some() {
                let output = running.child.wait_with_output().unwrap();
                panic!("it ended before its third step, {}: {}", output.status, text(&output.stderr));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        running
    }

    pub(crate) fn steps(&self) -> usize {
        let metrics = std::fs::read_to_string(self.run_dir.join("metrics.jsonl"));
        metrics.map_or(0, |lines| lines.lines().count())
    }

    /// Returns a rank's process id, read from its status file.
    pub(crate) fn pid(&self, rank: usize) -> u32 {
        let record = std::fs::read_to_string(self.run_dir.join(format!("logs/rank-{rank}.status"))).unwrap();
        let pid = record.lines().find_map(|line| line.strip_prefix("pid = ")).unwrap();
        pid.trim().parse().unwrap()
    }

    /// Returns the id of the started process, which is the launcher if there is one.
    pub(crate) fn launcher(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end within `limit`; otherwise kills the run and fails.
    pub(crate) fn end(mut self, limit: Duration) -> Output {
        let deadline = Instant::now() + limit;
        while self.child.try_wait().unwrap().is_none() {
            if Instant::now() >= deadline {
                self.child.kill().unwrap();
                panic!("it did not end within {limit:?}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.child.wait_with_output().unwrap()
    }
}

/// Sends a signal to a process.
pub(crate) fn signal(name: &str, pid: u32) {
    assert!(Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap().success());
}

/// Returns whether a process runs or is stopped; a zombie does neither.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn summary(run_dir: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(run_dir.join("summary.json")).unwrap()).unwrap()
}
