//! Tests that a rank that is killed, stopped, out of memory or has a broken corpus ends the run at once, with
//! an error that names rank, host, step and reason. Ranks that are asked to stop finish their step.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::jobs::{
    Running, Transport, arguments, has_mpi, is_alive, launcher, mpirun, over_tcp, signal, summary, text,
    train, workplace,
};
use crate::common::program;

/// Maximum time from a rank's death to the end of the job. Generous for a busy machine: only a hanging job
/// exceeds it.
const LIMIT: Duration = Duration::from_secs(120);

/// Asserts the last lines of a failed run, and that its processes have ended.
fn failed(output: &Output, run_dir: &Path, ranks: usize, words: &[&str]) {
    let printed = text(&output.stderr);
    assert!(!output.status.success(), "{printed}");
    let report = printed.split("plimsoll: rank ").nth(1).unwrap_or_else(|| panic!("no report: {printed}"));
    let sentence = format!("rank {}", report.lines().next().unwrap());
    for word in words {
        assert!(sentence.contains(word), "{word} is not in: {sentence}\nof {printed}");
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert!(sentence.contains(&format!(" on {} failed ", host.trim())), "{sentence}");
    assert_eq!(printed.matches("Last seen of every rank").count(), 1, "{printed}");
    for rank in 0..ranks {
        let line = |after: &str| report.contains(&format!("\n  rank {rank}{after}"));
        assert!(line(": ") || line(" (stage "), "rank {rank}: {printed}");
        if let Ok(record) = std::fs::read_to_string(run_dir.join(format!("logs/rank-{rank}.status"))) {
            let pid = record.lines().find_map(|line| line.strip_prefix("pid = ")).unwrap();
            let pid = pid.trim().parse().unwrap();
            // The launcher may end before the system has reaped a killed process.
            let deadline = Instant::now() + LIMIT;
            while is_alive(pid) {
                assert!(Instant::now() < deadline, "rank {rank} is still there");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
    let file = std::fs::read_to_string(run_dir.join("logs/failure.txt")).unwrap();
    assert!(printed.contains(&file), "{printed}");
    assert!(!run_dir.join("summary.json").exists());
}

#[test]
fn a_killed_process_ends_the_job() {
    let table = Transport::of_processes().into_iter().flat_map(|transport| [(transport, 2), (transport, 0)]);
    for (transport, rank) in table {
        let workplace = workplace();
        let running = Running::start(transport, workplace.path(), 4, &[]);
        let pid = running.pid(rank);
        let run_dir = running.run_dir.clone();
        signal("KILL", pid);
        let output = running.end(LIMIT);
        let index = format!("rank {rank} on ");
        let words = [
            &index,
            "failed in step ",
            "last call ",
            &format!("its process {pid} on "),
            "has ended without a message",
        ];
        failed(&output, &run_dir, 4, &words);
    }
}

/// Checks that the report names a dead pipeline rank's stage.
#[test]
fn a_killed_stage_ends_the_job() {
    for transport in Transport::of_processes() {
        let workplace = workplace();
        let sets = ["parallel.data=2", "parallel.pipeline=2"];
        let running = Running::start(transport, workplace.path(), 4, &sets);
        let pid = running.pid(3);
        let run_dir = running.run_dir.clone();
        signal("KILL", pid);
        let output = running.end(LIMIT);
        let words =
            ["rank 3 (stage 1 of 2) on ", "failed in step ", "last call ", "has ended without a message"];
        failed(&output, &run_dir, 4, &words);
    }
}

#[test]
fn a_stopped_process_ends_the_job_after_the_timeout() {
    for transport in Transport::of_processes() {
        let workplace = workplace();
        let running = Running::start(transport, workplace.path(), 4, &["parallel.timeout_seconds=5"]);
        let pid = running.pid(1);
        let run_dir = running.run_dir.clone();
        signal("STOP", pid);
        let output = running.end(LIMIT);
        let words = ["rank 1 on ", "failed in step ", "last call ", "did not answer rank ", "within 5.0 s"];
        failed(&output, &run_dir, 4, &words);
    }
}

#[test]
fn a_truncated_corpus_is_named() {
    for transport in Transport::all() {
        let workplace = workplace();
        let running = Running::start(transport, workplace.path(), 2, &[]);
        let run_dir = running.run_dir.clone();
        let corpus =
            std::fs::OpenOptions::new().write(true).open(workplace.path().join("corpus.txt")).unwrap();
        corpus.set_len(10).unwrap();
        let output = running.end(LIMIT);
        let words = ["failed in step ", "last call ", "corpus.txt was changed while it was read"];
        failed(&output, &run_dir, 2, &words);
    }
}

/// Limits the memory of rank 1, or of the process, below the 320 MB of the second layer's weights.
#[test]
fn out_of_memory_writes_the_table_and_the_snapshot() {
    const LIMITED: &str = "[ \"${RANK:-1}\" = 0 ] || ulimit -v 900000; exec \"$@\"";
    let sets = [
        "model.kind=mlp",
        "model.sizes=[3, 8000, 10000, 2]",
        "data.kind=synthetic",
        "optim.kind=sgd",
        // The default differs under the limit, and ranks must agree.
        "memory.allocator=expandable_segments:False",
    ];
    for transport in Transport::all() {
        let workplace = workplace();
        let mut command = match transport {
            Transport::Threads => Command::new("bash"),
            Transport::Tcp => {
                let mut command = over_tcp(workplace.path(), 2);
                command.arg("bash");
                command
            }
            Transport::Mpi => {
                let mut command = mpirun(workplace.path());
                command.args(["-n", "1"]).arg(program()).args(arguments(2, &sets)).arg("--no-plan");
                command.args([":", "-n", "1", "bash"]);
                command
            }
        };
        command.args(["-c", LIMITED, "bash"]).arg(program()).args(arguments(2, &sets)).arg("--no-plan");
        // Each thread's heap reserves a large address range and uses little of it.
        command.env("MALLOC_ARENA_MAX", "1").env("RAYON_NUM_THREADS", "2");
        let output = command.current_dir(workplace.path()).stdin(Stdio::null()).output().unwrap();
        let run_dir = workplace.path().join("out");
        let rank = if transport == Transport::Threads { "rank " } else { "rank 1 on " };
        failed(&output, &run_dir, 2, &[rank, "out of memory on device", "its memory is in "]);
        let files_ending = |ending: &str| {
            (0..2).find_map(|rank| std::fs::read(run_dir.join(format!("logs/rank-{rank}.{ending}"))).ok())
        };
        let table = text(&files_ending("oom.txt").unwrap());
        assert!(table.contains("memory summary") && table.contains("OOMs: 1"), "{table}");
        assert!(files_ending("oom.pickle").unwrap().ends_with(b"."));
    }
}

/// Sends Slurm's warning signal to every process or to one: all ranks end after the same step.
#[test]
fn sigterm_ends_a_healthy_job_after_the_step() {
    for transport in Transport::all() {
        for everybody in [true, false] {
            let workplace = workplace();
            let running = Running::start(transport, workplace.path(), 4, &["checkpoint.every=1000000"]);
            let mut pids: Vec<u32> = (0..4).map(|rank| running.pid(rank)).collect();
            pids.dedup();
            let signalled = if everybody { &pids[..] } else { &pids[pids.len() - 1..] };
            signalled.iter().for_each(|pid| signal("TERM", *pid));
            let run_dir = running.run_dir.clone();
            ended_well(&running.end(LIMIT), &run_dir, 143);
            assert!(pids.iter().all(|pid| !is_alive(*pid)));
        }
    }
}

#[test]
fn sigusr1_ends_threads_after_the_step() {
    let workplace = workplace();
    let running = Running::start(Transport::Threads, workplace.path(), 2, &["checkpoint.every=1000000"]);
    signal("USR1", running.launcher());
    let run_dir = running.run_dir.clone();
    ended_well(&running.end(LIMIT), &run_dir, 0);
}

/// As in shells: 128 plus the signal's number.
#[test]
fn the_status_of_a_stopped_run_names_the_signal() {
    for (name, status) in [("INT", 130), ("HUP", 129)] {
        let workplace = workplace();
        let running = Running::start(Transport::Threads, workplace.path(), 2, &["checkpoint.every=1000000"]);
        signal(name, running.launcher());
        let run_dir = running.run_dir.clone();
        ended_well(&running.end(LIMIT), &run_dir, status);
    }
}

/// Signals `launch/mpirun`, which turns the signal into a request to stop; `mpirun` itself would kill the
/// job.
#[test]
fn a_signal_to_the_script_ends_its_job_after_the_step() {
    if !has_mpi() {
        return;
    }
    for (name, status) in [("TERM", 143), ("INT", 130)] {
        let workplace = workplace();
        let running = Running::start_by_script(workplace.path(), 2, &["checkpoint.every=1000000"]);
        signal(name, running.launcher());
        let run_dir = running.run_dir.clone();
        ended_well(&running.end(LIMIT), &run_dir, status);
    }
}

/// Checks that a slow disk delays checkpoints but no step. Ranks still respond, the next checkpoint is
/// postponed (logged once), and every started checkpoint is completed.
#[test]
fn a_slow_disk_delays_only_checkpoints() {
    // The disk is slow for rank 0, which writes the manifest, or for both ranks, each of which writes a file.
    let slow = [("0", "checkpoint manifest written:4500"), ("1", "checkpoint state written:4500")];
    // Threads in both ways, and processes in one way each.
    let cases = [Transport::Threads].into_iter().chain(Transport::all()).zip(slow.into_iter().cycle());
    for (transport, (zero_stage, slow)) in cases {
        let workplace = workplace();
        let zero_stage = format!("parallel.zero_stage={zero_stage}");
        let sets = [
            "train.steps=30",
            "checkpoint.every=2",
            "checkpoint.keep=9",
            "parallel.timeout_seconds=3",
            &zero_stage,
        ];
        let mut command = train(transport, workplace.path(), 2, &sets);
        // At its end, the run waits for the disk longer than ranks wait for each other.
        let output = command.env("PLIMSOLL_SLOW", slow).output().unwrap();
        let printed = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{transport:?}: {printed}");
        assert_eq!(printed.matches("is put off until the last one is on the disk").count(), 1, "{printed}");
        let run_dir = workplace.path().join("out");
        let steps: Vec<u64> = checkpoint::list(&run_dir).unwrap().into_iter().map(|(step, _)| step).collect();
        assert!((2..15).contains(&steps.len()) && steps[0] == 2 && steps.ends_with(&[30]), "{steps:?}");
        for (_, path) in checkpoint::list(&run_dir).unwrap() {
            checkpoint::Checkpoint::open(&path).unwrap();
        }
        assert_eq!(summary(&run_dir)["steps"], 30);
    }
}

/// Checks that a long write reports its progress, and a request to stop reports the work still to be done.
#[test]
fn a_slow_checkpoint_says_how_far_it_is() {
    let workplace = workplace();
    let sets = ["train.steps=2", "train.global_batch_size=8", "parallel.lanes=1"];
    let mut command = train(Transport::Threads, workplace.path(), 1, &sets);
    // A checkpoint of this model has two pieces.
    command
        .env("PLIMSOLL_SLOW", "checkpoint piece written:2500")
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let running = command.spawn().unwrap();
    let run_dir = workplace.path().join("out");
    while !run_dir.join("summary.json").exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    signal("TERM", running.id());
    let output = running.wait_with_output().unwrap();
    let printed = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{printed}");
    for words in [
        "writing the results; a second signal",
        "writing the checkpoint of step 2: ",
        " bytes, is on the disk",
    ] {
        assert!(printed.contains(words), "{words}: {printed}");
    }
    assert_eq!(checkpoint::list(&run_dir).unwrap().len(), 1);
    let mut command = train(Transport::Threads, workplace.path(), 1, &["train.steps=3", sets[1], sets[2]]);
    command.arg("--resume").env("PLIMSOLL_SLOW", "checkpoint piece about to be checked:2500");
    let output = command.output().unwrap();
    let printed = text(&output.stderr);
    assert!(output.status.success() && printed.contains("INFO checking "), "{printed}");
}

/// Delays rank 1's checkpoint reading beyond the ranks' timeout; it still responds meanwhile.
#[test]
fn a_rank_that_reads_slowly_is_not_taken_for_dead() {
    // A checkpoint of this model has about a hundred pieces.
    const SLOW: &str = "[ \"${RANK:-$OMPI_COMM_WORLD_RANK}\" = 0 ] || \
                        export PLIMSOLL_SLOW='checkpoint piece about to be read:60'; exec \"$@\"";
    for transport in Transport::of_processes() {
        let workplace = workplace();
        let sets = ["train.steps=2", "parallel.timeout_seconds=3"];
        let first = train(transport, workplace.path(), 2, &sets).output().unwrap();
        assert_eq!(first.status.code(), Some(0), "{}", text(&first.stderr));
        let mut command = launcher(transport, workplace.path(), 2);
        command.args(["bash", "-c", SLOW, "bash"]).arg(program());
        command.args(arguments(2, &["train.steps=4", "parallel.timeout_seconds=3"])).arg("--resume");
        let output = command.stdin(Stdio::null()).output().unwrap();
        let printed = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{printed}");
        let run_dir = workplace.path().join("out");
        assert_eq!(summary(&run_dir)["steps"], 4);
        let log = std::fs::read_to_string(run_dir.join("logs/rank-1.log")).unwrap();
        assert!(log.contains("rank 1: reading out"), "{log}");
    }
}

/// Checks that a long read is reported, and that the other rank, which waits longer than its timeout, does
/// not assume the reader dead.
#[test]
fn a_slow_read_is_reported_with_its_file_and_delays_the_others() {
    for (transport, prefetch) in Transport::all().into_iter().flat_map(|all| [(all, 0), (all, 4)]) {
        let workplace = workplace();
        let prefetch = format!("data.prefetch={prefetch}");
        let sets = ["train.steps=2", "train.global_batch_size=4", "train.validation_micro_batches=1"];
        let more = ["train.micro_batch_size=2", "parallel.lanes=2", "parallel.timeout_seconds=3", &prefetch];
        let mut command = train(transport, workplace.path(), 2, &[&sets[..], &more].concat());
        let held = workplace.path().join("held");
        // One rank is held there.
        let hold = format!("micro-batch about to be read:1:{}", held.display());
        let command = command.env("PLIMSOLL_HOLD", hold).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let mut reported = Vec::new();
        let mut others = Vec::new();
        for line in lines {
            if !line.contains(" of training of /") {
                others.push(line);
                continue;
            }
            reported.push(line);
            // The read continues after it has been reported at 2 and 4 seconds.
            if reported.len() == 2 {
                let _ = std::fs::remove_file(&held);
            }
        }
        assert!(child.wait().unwrap().success(), "{transport:?} {prefetch}: {reported:?} {others:#?}");
        let words = |line: &String| line.contains(" has taken ") && line.contains(" s so far");
        assert!(reported.len() >= 2 && reported.iter().all(words), "{transport:?} {prefetch}: {reported:?}");
    }
}

/// Checks that SIGHUP stays ignored if the process was started so, as by `nohup`; other signals still stop
/// the run.
#[test]
fn ignored_signals_stay_ignored() {
    let workplace = workplace();
    let mut shell = Command::new("sh");
    shell.current_dir(workplace.path()).args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(program());
    shell.args(arguments(2, &["train.steps=1000000"])).env("CUDA_VISIBLE_DEVICES", "");
    let running = Running::wait(shell, workplace.path());
    signal("HUP", running.launcher());
    let before = running.steps();
    let deadline = Instant::now() + LIMIT;
    while running.steps() < before + 10 {
        assert!(Instant::now() < deadline, "it has stopped");
        std::thread::sleep(Duration::from_millis(5));
    }
    signal("TERM", running.launcher());
    let run_dir = running.run_dir.clone();
    ended_well(&running.end(LIMIT), &run_dir, 143);
}

/// Checks that a run that is stopped without having saved weights ends with an error.
#[test]
fn a_stopped_run_without_weights_is_an_error() {
    let workplace = workplace();
    let running = Running::start(Transport::Threads, workplace.path(), 2, &["checkpoint.minutes=0"]);
    signal("TERM", running.launcher());
    let run_dir = running.run_dir.clone();
    let output = running.end(LIMIT);
    let printed = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("and no weights are kept: checkpoint.every and checkpoint.minutes are 0"),
        "{printed}"
    );
    assert_eq!(summary(&run_dir)["interrupted"], true);
    assert!(!run_dir.join("checkpoints").exists());
}

fn ended_well(output: &Output, run_dir: &Path, status: i32) {
    let printed = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{printed}");
    assert!(printed.contains("stop requested: step "), "{printed}");
    let summary = summary(run_dir);
    assert_eq!(summary["interrupted"], true);
    let steps = summary["steps"].as_u64().unwrap();
    let lines = std::fs::read_to_string(run_dir.join("metrics.jsonl")).unwrap().lines().count();
    assert!((3..1_000_000).contains(&steps) && lines as u64 == steps, "{steps} steps, {lines} lines");
    assert!(run_dir.join(format!("checkpoints/step-{steps:06}")).is_dir());
    assert!(!run_dir.join("logs/failure.txt").exists());
}
