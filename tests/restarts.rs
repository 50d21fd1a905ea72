//! Tests of jobs that lose ranks, hosts and launchers at random moments, restart by themselves, and end with
//! the weights of an undisturbed run.

mod costs;
mod disk;
mod restarted;

use std::process::Command;
use std::time::Duration;

use crate::common;
use crate::common::devices::gpu;
use crate::common::jobs::{clean, has_mpi, is_alive, signal, text};
use crate::common::program;
use crate::common::random::{Budget, Random};
use costs::Costs;
use restarted::{Hosts, LIMIT, Restarted, SLOW_DISK, SLOW_STEPS, Slow, whole, whole_on_gpu, workplace};
use serde_json::Value;

/// Number of steps of the disturbed jobs.
const STEPS: u64 = 200;
/// Simulated disks of the disturbed jobs.
const DISKS: [Slow; 3] = [SLOW_DISK, SLOW_DISK, (SLOW_DISK.0, 400)];
/// Number of disturbances per job in a long run.
const EACH: usize = 6;

/// Ways in which a job is disturbed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Blow {
    /// A signal that kills or stops a rank.
    Rank(&'static str),
    /// A signal that kills or stops the launcher.
    Launcher(&'static str),
    /// All processes of a host are killed, and the host does not respond for some time.
    Host,
    /// The disk is full for some time.
    FullDisk,
    /// A host is disconnected for some time.
    Cable,
}

impl Blow {
    fn strike(self, job: &Restarted, random: &mut Random) {
        let lasts = Duration::from_millis(500 + random.below(2500) as u64);
        let file = match self {
            Blow::Rank(name) => {
                return job.pid(random.below(4)).into_iter().for_each(|pid| job.signal(name, pid));
            }
            Blow::Launcher(name) => return job.launcher().into_iter().for_each(|pid| job.signal(name, pid)),
            Blow::Host => job.lose("second"),
            Blow::FullDisk => job.fill_disk(),
            Blow::Cable => job.cut("second"),
        };
        std::thread::spawn(move || {
            std::thread::sleep(lasts);
            // The job may already have ended.
            let _ = std::fs::remove_file(file);
        });
    }
}

const BLOWS: [Blow; 7] = [
    Blow::Rank("KILL"),
    Blow::Host,
    Blow::Launcher("KILL"),
    Blow::Rank("STOP"),
    Blow::Rank("KILL"),
    Blow::Launcher("STOP"),
    Blow::FullDisk,
];

/// Like [`BLOWS`], with disconnected hosts.
const BLOWS_OF_NETWORKS: [Blow; 8] = [
    Blow::Cable,
    Blow::Rank("KILL"),
    Blow::Host,
    Blow::Launcher("KILL"),
    Blow::Cable,
    Blow::Rank("STOP"),
    Blow::Launcher("STOP"),
    Blow::FullDisk,
];

#[test]
fn a_disturbed_job_ends_with_the_weights_of_an_undisturbed_one() {
    disturb(Hosts::Two, &BLOWS);
}

#[test]
fn a_disturbed_job_over_two_networks_ends_with_the_weights_of_an_undisturbed_one() {
    disturb(Hosts::Networks, &BLOWS_OF_NETWORKS);
}

/// Disturbs jobs at random moments: two jobs in a short run, else for `PLIMSOLL_LONG_TESTS` seconds.
fn disturb(hosts: Hosts, blows: &[Blow]) {
    if !has_mpi() {
        return;
    }
    let whole = whole(STEPS);
    let budget = Budget::of_fuzzer();
    let mut random = Random::new(41);
    let mut jobs = 0;
    let mut struck = 0;
    let mut costs = Costs::default();
    while budget.within(jobs, 1) {
        let disk = DISKS[jobs % DISKS.len()];
        let job = Restarted::start(STEPS, hosts, &["--restarts", "50", "--grow"], disk);
        let Some(mut job) = job else { return };
        let each = if budget.allows(usize::MAX) { EACH } else { 2 };
        for _ in 0..each {
            job.wait(Duration::from_millis(700 + random.below(2500) as u64));
            if job.has_ended() {
                break;
            }
            // Every job begins with a different disturbance.
            blows[struck % blows.len()].strike(&job, &mut random);
            struck += 1;
        }
        costs.add(&job.ends_as(&whole));
        jobs += 1;
    }
    println!("{struck} disturbances of {jobs} jobs: {costs}");
}

#[test]
fn a_lost_host_is_left_out_until_it_answers_again() {
    if !has_mpi() {
        return;
    }
    let whole = whole(STEPS);
    let options = ["--restarts", "3", "--grow"];
    let Some(mut job) = Restarted::start(STEPS, Hosts::Two, &options, SLOW_DISK) else { return };
    job.await_checkpoint(20);
    let down = job.lose("second");
    job.await_checkpoint(60);
    std::fs::remove_file(down).unwrap();
    let sessions = job.ends_as(&whole);
    let sizes: Vec<_> = sessions.iter().map(|session| session["grid"]["data"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [4, 2, 4], "{sessions:?}");
    let causes: Vec<_> = sessions.iter().map(|session| &session["restart"]["cause"]).collect();
    assert!(causes[0].is_null() && causes[2] == "more hosts answer", "{causes:?}");
    assert_eq!(sessions[1]["ending"], "interrupted");
    assert_eq!(sessions[2]["restart"]["steps_repeated"], 0);
    assert!(sessions[1]["restart"]["seconds_to_next_step"].as_f64().unwrap() > 0.0);
}

/// Returns the step from which a session continued.
fn after_step(session: &Value) -> u64 {
    session["after_step"].as_u64().unwrap()
}

/// Loses ranks between checkpoints, with replicated and with sharded state. No checkpoint is written before
/// the end.
#[test]
fn a_job_goes_on_from_the_memory_of_its_hosts() {
    if !has_mpi() {
        return;
    }
    let whole = whole(STEPS);
    for (hosts, stage) in [(Hosts::One, 3), (Hosts::Two, 0), (Hosts::Two, 1)] {
        let stage = format!("parallel.zero_stage={stage}");
        let sets = ["checkpoint.memory_steps=5", "checkpoint.every=100000", &stage];
        let job = Restarted::start_with(STEPS, hosts, &["--restarts", "5"], SLOW_STEPS, &sets);
        let Some(mut job) = job else { return };
        let kept = [(1, 1, 40), (2, 3, 80)].map(|(number, rank, step)| {
            let kept = job.await_state(step);
            job.kill_rank(rank, number);
            kept
        });
        let states = job.states();
        let messages = job.messages();
        assert!(!messages.contains("from the beginning"), "{messages}");
        let sessions = job.ends_as(&whole);
        assert!(!states.exists(), "{}", states.display());
        let went_on: Vec<_> = sessions[1..].iter().map(after_step).collect();
        assert_eq!(went_on.len(), 2, "{sessions:?}");
        assert!(went_on[0] >= kept[0] && went_on[1] >= kept[1], "{went_on:?}, {kept:?}: {messages}");
    }
}

/// Checks that a job restarts from the beginning if its in-memory states lack files, and keeps in-memory
/// states from then on.
#[test]
fn an_incomplete_state_does_not_keep_others_out_of_memory() {
    if !has_mpi() {
        return;
    }
    let whole = whole(STEPS);
    let sets = ["checkpoint.memory_steps=5", "checkpoint.every=100000"];
    let mut job = Restarted::start_with(STEPS, Hosts::One, &["--restarts", "5"], SLOW_STEPS, &sets).unwrap();
    job.await_state(40);
    // Nothing is published while a rank is stopped.
    job.pid(1).into_iter().for_each(|pid| job.signal("STOP", pid));
    std::thread::sleep(Duration::from_millis(500));
    let (_, path) = job.newest_state().unwrap();
    // A step that the job reaches again, and a step later than all following states.
    let [reached, later] = ["step-000005", "step-001000"].map(|name| path.with_file_name(name));
    std::fs::rename(path, &later).unwrap();
    std::fs::remove_file(later.join("manifest.json")).unwrap();
    std::fs::create_dir(&reached).unwrap();
    std::fs::write(reached.join("other"), "").unwrap();
    job.kill_rank(1, 1);
    let began = std::time::Instant::now();
    while later.exists() {
        assert!(!job.has_ended() && began.elapsed() < LIMIT, "{}", job.messages());
        std::thread::sleep(Duration::from_millis(1));
    }
    let kept = job.await_state(40);
    assert!(!job.messages().contains("not kept in memory"), "{}", job.messages());
    job.kill_rank(3, 2);
    let messages = job.messages();
    let sessions = job.ends_as(&whole);
    let went_on: Vec<_> = sessions.iter().map(after_step).collect();
    assert!(went_on.len() == 3 && went_on[1] == 0 && went_on[2] >= kept, "{went_on:?}, {kept}: {messages}");
}

/// Uses one process whose ranks are threads with in-memory states; they share a GPU if there is one.
#[test]
fn a_job_of_threads_goes_on_after_each_kill() {
    let kills = if gpu() { 10 } else { 2 };
    let steps = 40 * (kills as u64 + 1);
    let whole = whole_on_gpu(steps);
    let sets = ["parallel.ranks_per_device=4", "checkpoint.memory_steps=5"];
    let job = Restarted::start_with(steps, Hosts::Threads, &["--restarts", "3"], SLOW_DISK, &sets);
    let mut job = job.unwrap();
    let mut random = Random::new(43);
    let mut costs = Costs::default();
    for number in 1..=kills {
        job.await_checkpoint(40 * number as u64);
        job.wait(Duration::from_millis(random.below(300) as u64));
        job.kill_rank(0, number);
    }
    let sessions = job.ends_as(&whole);
    assert_eq!(sessions.len(), kills + 1);
    assert!(sessions.iter().all(|session| session["device_model"] == whole["device_model"]), "{sessions:?}");
    costs.add(&sessions);
    println!("{kills} kills on {}: {costs}", whole["device_model"]);
}

/// Checks that an unattended job continues from the checkpoint before a damaged one; each rank verifies a
/// share of the files.
#[test]
fn a_job_goes_on_from_the_checkpoint_before_a_damaged_one() {
    let whole = whole(STEPS);
    for (hosts, sets, file) in [
        (Hosts::Threads, &["parallel.ranks_per_device=1"][..], "state.safetensors"),
        (Hosts::One, &["parallel.zero_stage=1"], "state-00002-of-00004.safetensors"),
    ] {
        if hosts == Hosts::One && !has_mpi() {
            continue;
        }
        let job = Restarted::start_with(STEPS, hosts, &["--restarts", "3"], SLOW_DISK, sets);
        let Some(mut job) = job else { return };
        job.await_checkpoint(60);
        let ranks: Vec<_> = (0..4).filter_map(|rank| job.pid(rank)).collect();
        // Each rank is stopped, so that no newer checkpoint appears.
        ranks.iter().for_each(|pid| job.signal("STOP", *pid));
        let (damaged, before) = job.damage_newest(file);
        ranks.iter().for_each(|pid| job.signal("KILL", *pid));
        let messages = job.await_message("restart 1 from the newest state");
        let sessions = job.ends_as(&whole);
        let went_on: Vec<_> = sessions.iter().map(after_step).collect();
        assert_eq!(went_on, [0, before], "{messages}");
        let warnings = sessions[1]["warnings"].to_string();
        assert!(warnings.contains(&format!("the checkpoint of step {damaged} is damaged: ")), "{warnings}");
        assert!(warnings.contains(&format!("{file}: it is ")), "{warnings}");
    }
}

/// Deletes the memory of a lost host, as in a power failure.
#[test]
fn a_job_goes_on_from_the_neighbours_copy_of_a_lost_host() {
    if !has_mpi() {
        return;
    }
    let whole = whole(STEPS);
    let two = Hosts::Two;
    let networks = Hosts::Networks;
    for (hosts, host, stage) in [(two, "first", "0"), (networks, "second", "1")] {
        let stage = format!("parallel.zero_stage={stage}");
        let sets = ["checkpoint.memory_steps=5", "checkpoint.every=100000", &stage];
        let job = Restarted::start_with(STEPS, hosts, &["--restarts", "5"], SLOW_STEPS, &sets);
        let Some(mut job) = job else { return };
        let kept = job.await_state(60);
        job.lose(host);
        std::fs::remove_dir_all(job.states().join(host)).unwrap();
        let began = std::time::Instant::now();
        while !job.messages().contains("plimsoll: restart 1") {
            assert!(began.elapsed() < LIMIT, "{}", job.messages());
            std::thread::sleep(Duration::from_millis(5));
        }
        let messages = job.messages();
        assert!(!messages.contains("restart 1 from the beginning"), "{messages}");
        let sessions = job.ends_as(&whole);
        let went_on = after_step(&sessions[1]);
        assert!(went_on >= kept && sessions[1]["grid"]["data"] == 2, "{kept}, {sessions:?}: {messages}");
    }
}

#[test]
fn nothing_is_left_of_a_job_whose_restarting_process_is_killed() {
    if !has_mpi() {
        return;
    }
    let sets = ["checkpoint.memory_steps=5"];
    let job = Restarted::start_with(1_000_000, Hosts::One, &["--restarts", "3"], SLOW_DISK, &sets);
    let Some(mut job) = job else { return };
    job.await_step(20);
    let pids: Vec<_> = (0..4).filter_map(|rank| job.pid(rank)).chain(job.launcher()).collect();
    let states = job.states();
    assert!(pids.len() == 5 && states.exists(), "{pids:?}");
    signal("KILL", job.id());
    let began = std::time::Instant::now();
    while pids.iter().any(|pid| is_alive(*pid)) || states.exists() {
        assert!(began.elapsed() < LIMIT, "{pids:?}, {}", states.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn failures_without_a_checkpoint_end_a_job_with_the_reason() {
    if !has_mpi() {
        return;
    }
    let job = Restarted::start(1_000_000, Hosts::One, &["--restarts", "2"], SLOW_DISK).unwrap();
    job.disturb_every_start();
    let output = job.end();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    let last = message.lines().last().unwrap();
    assert!(last.starts_with("plimsoll: 2 failures") && last.contains("; the last: rank 1 "), "{message}");
    assert!(message.contains("plimsoll: restart 1 from the beginning, 4 ranks"), "{message}");
}

#[test]
fn a_job_that_is_stopped_or_refused_does_not_start_again() {
    if !has_mpi() {
        return;
    }
    let mut job = Restarted::start(1_000_000, Hosts::One, &["--restarts", "3"], SLOW_DISK).unwrap();
    job.await_checkpoint(1);
    signal("TERM", job.id());
    let output = job.end();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(143), "{message}");
    assert!(message.contains("stopping after this step") && !message.contains("restart 1"), "{message}");
    let directory = workplace(10);
    for (words, expected) in [
        (
            &[
                "--restarts",
                "2",
                "-n",
                "4",
                "train",
                "run.toml",
                "--run-dir",
                "out",
                "--set",
                "model.width=3",
            ][..],
            "model.width",
        ),
        (&["--restarts", "2", "-n", "4", "train", "run.toml"], "--run-dir is missing"),
        (&["--restarts", "0", "-n", "4", "train", "run.toml"], "--restarts"),
        (&["--restarts", "2", "-n", "4", "eval", "out"], "no command train"),
        (&["--restarts"], "Usage: launch/mpirun"),
    ] {
        let mut command = clean(common::root().join("launch/mpirun"), directory.path());
        let output = command.env("PLIMSOLL", program()).args(words).output().unwrap();
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {message}");
        assert!(message.contains(expected) && !message.contains("restart 1"), "{words:?}: {message}");
    }
}

/// Runs `launch/slurm.sbatch` with stand-ins for Slurm's programs.
#[test]
fn slurm_starts_a_job_again_on_the_nodes_that_answer() {
    let directory = workplace(10);
    let path = |name: &str| directory.path().join(name);
    common::scripts::write(&path("bin/scontrol"), "printf 'node1\\nnode2\\n'");
    // The second node responds until the job has failed once.
    let srun = "case \"$*\" in *' true') [[ $* != *node2* || ! -e failed ]]; exit;; esac\n\
                echo \"$*\" >>starts; [[ -e failed ]] || { touch failed; exit 1; }";
    common::scripts::write(&path("bin/srun"), srun);
    let search = format!("{}:{}", path("bin").display(), std::env::var("PATH").unwrap());
    let mut command: Command = clean(common::root().join("launch/slurm.sbatch"), directory.path());
    command.args(["run.toml", "out"]).env("PATH", search).env("PLIMSOLL", program());
    command.env("PLIMSOLL_RESTARTS", "3").env("SLURM_JOB_NODELIST", "node[1-2]");
    let output = command.env("SLURM_NTASKS_PER_NODE", "2").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let starts = std::fs::read_to_string(path("starts")).unwrap();
    let starts: Vec<_> = starts.lines().collect();
    assert_eq!(starts.len(), 2, "{starts:?}");
    assert!(starts[0].contains("--nodelist=node1,node2 --nodes=2 --ntasks=4 "), "{starts:?}");
    assert!(starts[1].contains("--nodelist=node1 --nodes=1 --ntasks=2 "), "{starts:?}");
    assert!(starts[1].ends_with("--resume --set parallel.data=2"), "{starts:?}");
}
