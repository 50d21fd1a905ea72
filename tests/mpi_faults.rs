//! Tests of ranks that do not start, do not end, or run another command: the job ends within its deadline,
//! with the reason.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::common::jobs::{arguments, has_mpi, mpirun, signal, summary, text, workplace};
use crate::common::program;
use crate::common::random::{Budget, Random};
use system::fail_point;

/// Timeout for a silent rank, long enough for a busy machine.
const SILENCE: &str = "parallel.timeout_seconds=8";
/// Timeout of a start in which a rank is missing.
const START: (&str, &str) = ("PLIMSOLL_START_SECONDS", "8");

/// Returns a job of two ranks with these variables; the second rank runs the command `other`.
fn job(directory: &Path, variables: &[(&str, &str)], other: &[&str]) -> Command {
    let mut command = mpirun(directory);
    command.args(["-n", "1"]).arg(program());
    command.args(arguments(2, &[SILENCE])).args([":", "-n", "1", "env"]);
    command.args(variables.iter().map(|(name, value)| format!("{name}={value}"))).args(other);
    command
}

/// Returns the arguments of a second rank that trains like the first.
fn rank() -> Vec<String> {
    let mut all = vec![program().to_string_lossy().into_owned()];
    all.extend(arguments(2, &[SILENCE]));
    all
}

/// Starts a job with `environment` whose second rank pauses at `point`, and calls `then` with that rank's
/// process id.
fn held(directory: &Path, environment: Option<(&str, &str)>, point: &str, then: impl FnOnce(u32)) -> Output {
    let here = directory.join("here");
    let hold = format!("{point}:1:{}", here.display());
    let rank = rank();
    let other: Vec<&str> = rank.iter().map(String::as_str).collect();
    // The shell writes its process id before it becomes the rank.
    let script = format!("echo $$ > {}; exec \"$@\"", directory.join("pid").display());
    let other = [&["bash", "-c", &script, "bash"], &other[..]].concat();
    let mut command = job(directory, &[(fail_point::VARIABLE, &hold)], &other);
    let mut child: Child =
        command.envs(environment).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while !here.exists() {
        assert!(child.try_wait().unwrap().is_none(), "{point} was not reached");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let pid = std::fs::read_to_string(directory.join("pid")).unwrap();
    then(pid.trim().parse().unwrap());
    child.wait_with_output().unwrap()
}

#[track_caller]
fn ended(output: &Output, words: &[&str]) {
    let message = text(&output.stderr);
    assert!(!output.status.success(), "{message}");
    for word in words {
        assert!(message.contains(word), "{word}: {message}");
    }
    assert!(!message.contains("panicked"), "{message}");
}

#[test]
fn a_rank_that_does_not_start_ends_the_job() {
    if !has_mpi() {
        return;
    }
    let late = "the ranks of the job did not all start within 8 s: ";
    let with = |other: &[&str]| {
        let workplace = workplace();
        job(workplace.path(), &[], other).env(START.0, START.1).output().unwrap()
    };
    // Each waits until its start times out.
    let [stopped, other, gone] = std::thread::scope(|scope| {
        let stopped = || {
            let workplace = workplace();
            held(workplace.path(), Some(START), "MPI about to start", |pid| signal("STOP", pid))
        };
        let jobs =
            [scope.spawn(stopped), scope.spawn(|| with(&["sleep", "600"])), scope.spawn(|| with(&["true"]))];
        jobs.map(|job| job.join().unwrap())
    });
    ended(&stopped, &[late, "rank 1, process ", "has stopped"]);
    ended(&other, &[late, "rank 1, process ", "is another program, ", "sleep"]);
    // If the other program ends after this rank has begun to start, the launcher ends the job itself.
    let message = text(&gone.stderr);
    let reason = if message.contains(late) {
        "of which 1 can be seen: another has ended"
    } else {
        "mpirun has exited"
    };
    ended(&gone, &[reason]);
}

#[test]
fn a_command_of_one_process_cannot_be_a_rank() {
    if !has_mpi() {
        return;
    }
    let program = program();
    let program = program.to_str().unwrap();
    for command in [&["plan", "run.toml"][..], &["bench", "allocator"]] {
        let workplace = workplace();
        let output = job(workplace.path(), &[], &[&[program], command].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        ended(&output, &["a launcher started 2 processes, and this command is one"]);
    }
}

#[test]
fn ranks_with_other_options_are_named() {
    if !has_mpi() {
        return;
    }
    for (more, words) in [
        (["--no-plan", ""], "another set of options, --no-plan and not none,"),
        (["--resume", ""], "another set of options, --resume and not none,"),
        (["--device", "meta"], "another kind of device, meta and not cpu,"),
    ] {
        let workplace = workplace();
        let mut rank = rank();
        rank.extend(more.iter().filter(|word| !word.is_empty()).map(|word| (*word).to_owned()));
        let other: Vec<&str> = rank.iter().map(String::as_str).collect();
        let output = job(workplace.path(), &[], &other).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        ended(&output, &["rank 1 on ", words]);
        assert!(!workplace.path().join("out").exists());
    }
}

/// Checks that results are written before MPI is finalized.
#[test]
fn a_rank_that_does_not_end_leaves_the_results() {
    if !has_mpi() {
        return;
    }
    for signal_name in ["STOP", "KILL"] {
        let workplace = workplace();
        let output = held(workplace.path(), None, "MPI about to end", |pid| signal(signal_name, pid));
        assert_eq!(summary(&workplace.path().join("out"))["steps"], 6, "{}", text(&output.stderr));
        if signal_name == "STOP" {
            ended(&output, &["all ranks had done their work, and rank 1, which has stopped, did not end"]);
        }
    }
}

/// Sends signals at random moments of a job, which must end.
#[test]
fn no_signal_at_any_moment_makes_a_job_hang() {
    if !has_mpi() {
        return;
    }
    let budget = Budget::of_fuzzer();
    let mut random = Random::new(23);
    let mut round = 0;
    while budget.within(round, 2) {
        let workplace = workplace();
        let rank = rank();
        let other: Vec<&str> = rank.iter().map(String::as_str).collect();
        let script = format!("echo $$ > {}; exec \"$@\"", workplace.path().join("pid").display());
        let other = [&["bash", "-c", &script, "bash"], &other[..]].concat();
        let mut command = job(workplace.path(), &[], &other);
        command.env(START.0, START.1).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(random.below(1500) as u64));
        let name = *random.one(&["STOP", "KILL", "TERM", "INT", "HUP"]);
        if let Ok(pid) = std::fs::read_to_string(workplace.path().join("pid")) {
            // The process may already have ended.
            let _ =
                Command::new("kill").args([&format!("-{name}"), pid.trim()]).stderr(Stdio::null()).status();
        }
        let output = child.wait_with_output().unwrap();
        assert!(!text(&output.stderr).contains("panicked"), "{name}: {}", text(&output.stderr));
        round += 1;
    }
}
