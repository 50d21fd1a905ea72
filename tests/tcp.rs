//! Tests of ranks started by a launcher without MPI: the bits of threads, one sentence for an error on each
//! rank, and jobs that end within their deadlines, also between two hosts.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::jobs::{
    Running, Transport, arguments, clean, free_port, history, is_alive, outcome, over_tcp, signal, text,
    train, two_namespaces, workplace,
};
use crate::common::program;
use crate::common::python::python_with;
use crate::common::random::{Budget, Random};

/// Timeout for a silent rank, long enough for a busy machine.
const SILENCE: &str = "parallel.timeout_seconds=8";
/// Timeout of a start in which a rank is missing.
const START: (&str, &str) = ("PLIMSOLL_START_SECONDS", "8");
/// Maximum time to the end of a job. Generous for a busy machine: only a hanging job exceeds it.
const LIMIT: Duration = Duration::from_secs(120);

/// Returns a job of two ranks; the second runs the shell command `other`, in which `$@` is the first rank's
/// command.
fn pair(directory: &Path, other: &str) -> Command {
    let script = format!("if [ \"$RANK\" = 1 ]; then {other}; else exec \"$@\"; fi");
    let mut command = over_tcp(directory, 2);
    command.args(["bash", "-c", &script, "bash"]).arg(program()).args(arguments(2, &[SILENCE]));
    command
}

/// Returns Plimsoll's lines, without other programs'.
fn lines(output: &Output) -> Vec<String> {
    let printed = text(&output.stderr);
    assert!(!printed.contains("panicked"), "{printed}");
    printed.lines().filter(|line| line.starts_with("plimsoll: ")).map(str::to_owned).collect()
}

#[test]
fn processes_have_the_bits_of_one_rank() {
    let table: [(usize, &[&str]); 6] = [
        (2, &[]),
        (4, &["parallel.zero_stage=1"]),
        (3, &["parallel.zero_stage=3"]),
        (4, &["parallel.zero_stage=3", "parallel.shard=2"]),
        (2, &["parallel.data=1", "parallel.pipeline=2"]),
        (4, &["parallel.data=2", "parallel.pipeline=2", "parallel.schedule=zero-bubble"]),
    ];
    let common = ["model.layers=4", "optim.clip_norm=0.1"];
    let alone = history(Transport::Threads, 1, &common);
    for (ranks, grid) in table {
        assert_eq!(history(Transport::Tcp, ranks, &[&common[..], grid].concat()), alone, "{grid:?}");
    }
}

/// Checks that a grid of processes samples and evaluates like one rank.
#[test]
fn processes_sample_and_evaluate_as_one_rank() {
    let workplace = workplace();
    let trained = train(Transport::Threads, workplace.path(), 1, &["checkpoint.every=100"]).output().unwrap();
    assert_eq!(trained.status.code(), Some(0), "{}", text(&trained.stderr));
    for command in
        [&["sample", "out", "--prompt", "The load", "--seed=3", "--tokens=40"][..], &["eval", "out"]]
    {
        let object = |ranks: usize, sets: &[&str]| {
            let mut launched = over_tcp(workplace.path(), ranks);
            launched.arg(program()).args(command).arg("--json");
            launched.args(sets.iter().flat_map(|set| ["--set", set]));
            let output = launched.output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{sets:?}: {}", text(&output.stderr));
            // Only one rank prints the JSON object.
            let object: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            [&object["texts"], &object["loss"], &object["tokens"]].map(Clone::clone)
        };
        let alone = object(1, &["parallel.data=1"]);
        assert!(alone[2].as_u64().is_some_and(|tokens| tokens > 30), "{alone:?}");
        assert_eq!(object(2, &["parallel.data=2"]), alone);
        if command[0] == "eval" {
            assert_eq!(object(3, &["parallel.data=3", "parallel.zero_stage=3"]), alone);
        }
    }
}

/// Checks that an error found by connected ranks is printed once, and an error that prevents connecting is
/// printed by each of them.
#[test]
fn an_error_at_the_start_has_status_two() {
    let table: [(&str, usize, &str, usize, &str); 6] = [
        ("", 3, "parallel.data=2", 1, "the launcher has started 3 processes, and the configuration has"),
        ("", 2, "parallel.dat=2", 1, "unknown key parallel.dat: did you mean parallel.data?"),
        (
            "[ $RANK = 0 ] || export WORLD_SIZE=3; ",
            2,
            "parallel.data=2",
            2,
            " was started with WORLD_SIZE=3, and rank 0 with 2",
        ),
        (
            "export RANK=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=192.0.2.1; ",
            2,
            "parallel.data=2",
            2,
            "MASTER_ADDR=192.0.2.1 can be reached from other hosts, and PLIMSOLL_SECRET is not set",
        ),
        ("export PLIMSOLL_SECRET=short; ", 2, "parallel.data=2", 2, "PLIMSOLL_SECRET: it has 5 bytes"),
        ("export MASTER_PORT=port; ", 2, "parallel.data=2", 2, "MASTER_PORT=port is not a number"),
    ];
    for (setting, ranks, set, count, words) in table {
        let workplace = workplace();
        let mut command = over_tcp(workplace.path(), ranks);
        // Otherwise, the launcher would end the second rank before it has read the first one's sentence.
        let script = format!("{setting}\"$@\"; status=$?; sleep 1; exit $status");
        command
            .args(["bash", "-c", &script, "bash"])
            .arg(program())
            .args(["train", "run.toml", "--set", set]);
        let output = command.output().unwrap();
        let printed = lines(&output);
        assert_eq!(output.status.code(), Some(2), "{words}: {printed:?}");
        assert!(
            printed.len() == count && printed.iter().all(|line| line.contains(words)),
            "{words}: {printed:?}"
        );
        assert!(!workplace.path().join("runs").exists(), "{words}");
    }
}

#[test]
fn a_command_of_one_process_cannot_be_a_rank() {
    let workplace = workplace();
    let output = over_tcp(workplace.path(), 2).arg(program()).args(["plan", "run.toml"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let words =
        "a launcher started 2 processes, and this command is one: start it alone, as with env -u WORLD_SIZE";
    assert!(lines(&output)[0].contains(words), "{}", text(&output.stderr));
}

/// Checks that a process whose launcher set only some of the variables trains alone and warns.
#[test]
fn incomplete_variables_are_warned_about() {
    let workplace = workplace();
    let mut command = clean(program(), workplace.path());
    command.env("WORLD_SIZE", "2").env("RANK", "1").args(arguments(1, &["train.steps=1"]));
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let words = "plimsoll: WORLD_SIZE is 2, but MASTER_ADDR is not set, so this process trains alone";
    assert!(lines(&output).iter().any(|line| line.starts_with(words)), "{}", text(&output.stderr));
}

#[test]
fn a_rank_that_does_not_start_ends_the_job() {
    let late = "rank 1 did not connect to rank 0 on ";
    // Each waits until its start times out.
    std::thread::scope(|scope| {
        for other in ["kill -STOP $$; exec \"$@\"", "exec sleep 600", "exec true"] {
            scope.spawn(move || {
                let workplace = workplace();
                let begun = Instant::now();
                let output = pair(workplace.path(), other).env(START.0, START.1).output().unwrap();
                assert_ne!(output.status.code(), Some(0), "{other}");
                assert!(begun.elapsed() < LIMIT, "{other}");
                let printed = lines(&output);
                let words = [late, " within 8 s"];
                let is_named = |line: &String| words.iter().all(|words| line.contains(words));
                assert!(printed.iter().any(is_named), "{other}: {printed:?}");
            });
        }
    });
}

#[test]
fn ranks_with_other_options_are_named() {
    for (more, words) in [
        ("--no-plan", "another set of options, --no-plan and not none,"),
        ("--set train.seed=2", "another configuration, `seed = 2` and not "),
    ] {
        let workplace = workplace();
        let output = pair(workplace.path(), &format!("exec \"$@\" {more}")).output().unwrap();
        let printed = lines(&output);
        assert_eq!(output.status.code(), Some(2), "{printed:?}");
        assert!(
            printed.len() == 1 && printed[0].contains("rank 1 on ") && printed[0].contains(words),
            "{printed:?}"
        );
        assert!(!workplace.path().join("out").exists());
    }
}

/// Sends signals at random moments of a job, which must end.
#[test]
fn no_signal_at_any_moment_makes_a_job_hang() {
    let budget = Budget::of_fuzzer();
    let mut random = Random::new(29);
    let mut round = 0;
    while budget.within(round, 3) {
        let workplace = workplace();
        let pid = workplace.path().join("pid");
        let mut command = pair(workplace.path(), &format!("echo $$ > {}; exec \"$@\"", pid.display()));
        command.env(START.0, START.1).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(random.below(1500) as u64));
        let name = *random.one(&["STOP", "KILL", "TERM", "INT", "HUP"]);
        if let Ok(pid) = std::fs::read_to_string(pid) {
            // The process may already have ended.
            let _ =
                Command::new("kill").args([&format!("-{name}"), pid.trim()]).stderr(Stdio::null()).status();
        }
        let output = child.wait_with_output().unwrap();
        assert!(!text(&output.stderr).contains("panicked"), "{name}: {}", text(&output.stderr));
        round += 1;
    }
}

#[test]
fn two_hosts_give_the_bits_of_one() {
    let there = workplace();
    let Some(mut command) = two_namespaces(there.path(), 2) else { return };
    command.args(arguments(4, &[]));
    let (computed, hosts) = outcome(command, there.path());
    assert_eq!(hosts, ["first", "first", "second", "second"]);
    let here = workplace();
    assert_eq!(computed, outcome(train(Transport::Threads, here.path(), 4, &[]), here.path()).0);
}

/// Kills a rank on another host, whose processes are invisible here: it is detected by its closed connection.
#[test]
fn a_rank_killed_on_another_host_is_named() {
    let directory = workplace();
    let Some(mut command) = two_namespaces(directory.path(), 2) else { return };
    command.args(arguments(4, &["train.steps=1000000"]));
    let running = Running::wait(command, directory.path());
    let pids: Vec<u32> = (0..4).map(|rank| running.pid(rank)).collect();
    let run_dir = running.run_dir.clone();
    signal("KILL", pids[3]);
    let output = running.end(LIMIT);
    assert_ne!(output.status.code(), Some(0));
    assert!(!pids.iter().any(|pid| is_alive(*pid)), "a rank is left");
    let report = std::fs::read_to_string(run_dir.join("logs/failure.txt")).unwrap();
    assert!(report.contains("rank 3 on second"), "{report}");
    assert!(report.contains("has ended without a message"), "{report}");
}

/// Disconnects two hosts, which become silent for each other; both must end.
#[test]
fn a_cable_that_is_cut_ends_the_job() {
    let directory = workplace();
    let Some(mut command) = two_namespaces(directory.path(), 1) else { return };
    command.args(arguments(2, &["train.steps=1000000", "parallel.timeout_seconds=5"]));
    let running = Running::wait(command, directory.path());
    let pids: Vec<u32> = (0..2).map(|rank| running.pid(rank)).collect();
    std::fs::write(directory.path().join("cut"), "").unwrap();
    let run_dir = running.run_dir.clone();
    let output = running.end(LIMIT);
    assert_ne!(output.status.code(), Some(0));
    assert!(!pids.iter().any(|pid| is_alive(*pid)), "a rank is left");
    let report = std::fs::read_to_string(run_dir.join("logs/failure.txt")).unwrap();
    assert!(report.contains("it did not answer rank ") && report.contains("within 5.0 s"), "{report}");
}

/// Starts hosts that are disconnected from the beginning: each must report the rank that it cannot reach.
#[test]
fn a_host_that_does_not_answer_is_named() {
    let directory = workplace();
    std::fs::write(directory.path().join("cut"), "").unwrap();
    let Some(mut command) = two_namespaces(directory.path(), 1) else { return };
    let output = command.env(START.0, START.1).args(arguments(2, &[])).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let printed = lines(&output);
    for words in [
        "rank 1 did not connect to rank 0 on first within 8 s",
        "rank 0 at 10.9.0.1, port 29500, did not answer",
    ] {
        assert!(printed.iter().any(|line| line.contains(words)), "{words}: {printed:?}");
    }
}

/// Occupies MASTER_PORT as torchrun does while its processes run, and announces it in the same way.
#[test]
fn a_launcher_that_uses_the_port_itself_is_no_obstacle() {
    let workplace = workplace();
    let port = free_port();
    let _store = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    let mut command = over_tcp(workplace.path(), 2);
    command.env("MASTER_PORT", port.to_string()).env("TORCHELASTIC_RUN_ID", "none");
    command.arg(program()).args(arguments(2, &[]));
    let refused = command.output().unwrap();
    let words = format!("port {port} of this host is in use by another program: choose another port");
    assert_eq!(refused.status.code(), Some(2));
    assert!(lines(&refused).iter().any(|line| line.contains(&words)), "{}", text(&refused.stderr));
    let output = command.env("TORCHELASTIC_USE_AGENT_STORE", "True").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

/// Uses PyTorch's own launcher, whose store listens on MASTER_PORT.
#[test]
fn torchrun_starts_ranks() {
    let Some(python) = python_with(&["torch"]) else { return };
    let there = workplace();
    let mut command = clean(python, there.path());
    command.args(["-m", "torch.distributed.run", "--nproc-per-node", "2"]);
    command.args(["--master-port", &free_port().to_string(), "--no-python"]).arg(program());
    command.args(arguments(2, &[]));
    let (computed, _) = outcome(command, there.path());
    let here = workplace();
    assert_eq!(computed, outcome(train(Transport::Threads, here.path(), 2, &[]), here.path()).0);
}
