//! A job under `launch/mpirun --restarts`, with ways to disturb it and to check its results.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use checkpoint::{Checkpoint, list};
use serde_json::Value;
use system::fail_point;
use system::skipped::{self, Need};

use super::disk::Disk;
use crate::common::jobs::{clean, signal, summary, text};
use crate::common::{program, root};

/// Configuration of a model so small that a job spends most of its time starting.
const TINY: &str = r#"
[model]
layers = 1
heads = 2
width = 16
context = 16
[data]
paths = ["corpus.txt"]
[train]
micro_batch_size = 1
global_batch_size = 8
validation_micro_batches = 1
[optim]
warmup_steps = 2
[checkpoint]
every = 20
wait = true
[parallel]
data = 4
timeout_seconds = 5
"#;

/// Environment variable that lists the GPUs of a process.
const GPUS: &str = "CUDA_VISIBLE_DEVICES";
/// Maximum duration of a job.
pub(crate) const LIMIT: Duration = Duration::from_secs(600);

/// A fail point at which a job's threads sleep, and the milliseconds.
pub(crate) type Slow = (&'static str, u64);

/// A disk that takes 100 ms for each file of a checkpoint.
pub(crate) const SLOW_DISK: Slow = ("checkpoint piece written", 100);
/// Makes steps take at least 10 ms, so that a job with in-memory states has not ended when a state is seen.
pub(crate) const SLOW_STEPS: Slow = ("micro-batch about to be read", 5);

/// The hosts of a job of four ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Hosts {
    /// This host, with one process per rank.
    One,
    /// This host, with ranks as threads of one process, on its first GPU if there is one.
    Threads,
    /// Two simulated hosts, `first` and `second`.
    Two,
    /// Two simulated hosts with separate networks.
    Networks,
}

/// Creates a directory with a corpus and a configuration of `steps` steps.
pub(crate) fn workplace(steps: u64) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let line = "The load line of a ship says how much she may carry, and in which waters.\n";
    std::fs::write(directory.path().join("corpus.txt"), line.repeat(100)).unwrap();
    let text = TINY.replace("[train]\n", &format!("[train]\nsteps = {steps}\n"));
    std::fs::write(directory.path().join("run.toml"), text).unwrap();
    directory
}

/// Returns the summary of an undisturbed run on one rank.
pub(crate) fn whole(steps: u64) -> Value {
    let directory = workplace(steps);
    whole_by(clean(program(), directory.path()), &directory)
}

/// Like [`whole`], on the first GPU if there is one.
pub(crate) fn whole_on_gpu(steps: u64) -> Value {
    let directory = workplace(steps);
    let mut command = clean(program(), directory.path());
    command.env(GPUS, "0");
    whole_by(command, &directory)
}

fn whole_by(mut command: Command, directory: &tempfile::TempDir) -> Value {
    command.args(["train", "run.toml", "--run-dir", "out", "--set", "parallel.data=1"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    summary(&directory.path().join("out"))
}

/// A job that is restarted. If the system allows it, its run directory is a separate small file system.
pub(crate) struct Restarted {
    directory: tempfile::TempDir,
    child: Child,
    hosts: Hosts,
    disk: Option<Disk>,
}

impl Restarted {
    /// Starts a job of four ranks with a slow disk. If hosts cannot be simulated, returns `None` and reports
    /// the test as skipped.
    pub(crate) fn start(steps: u64, hosts: Hosts, options: &[&str], slow: Slow) -> Option<Self> {
        Self::start_with(steps, hosts, options, slow, &[])
    }

    /// Like [`Restarted::start`], with additional settings.
    pub(crate) fn start_with(
        steps: u64,
        hosts: Hosts,
        options: &[&str],
        slow: Slow,
        sets: &[&str],
    ) -> Option<Self> {
        let directory = workplace(steps);
        let two = root().join("tests/common/hosts");
        let networks = root().join("tests/common/networks");
        let can = |script: &Path, words: &[&str]| {
            Command::new(script).args(words).output().unwrap().status.success()
        };
        match hosts {
            Hosts::Two if !can(&two, &["1", "true"]) => {
                skipped::report(Need::Other("faked hosts"), "they take mpirun and user namespaces");
                return None;
            }
            Hosts::Networks if !can(&networks, &["true"]) => {
                let why = "they take mpirun, user namespaces, unshare and ip";
                skipped::report(Need::Other("network namespaces"), why);
                return None;
            }
            _ => {}
        }
        let disk = Disk::mount(directory.path());
        let mut command = match &disk {
            Some(disk) => disk.command(directory.path()),
            None => clean("env", directory.path()),
        };
        if hosts == Hosts::Networks {
            command.arg(networks).env("CUT", directory.path().join("cut"));
        }
        match hosts {
            Hosts::Threads => command.env(GPUS, "0").arg(program()).args(["launch", "--with=threads"]),
            _ => command.arg(root().join("launch/mpirun")),
        };
        command.args(options);
        if hosts == Hosts::Two {
            command.env("HOSTS_AGENT", "1");
            command.env("OMPI_MCA_plm", "rsh").env("OMPI_MCA_plm_rsh_agent", two);
            command.env("OMPI_MCA_oob_tcp_if_include", "lo").env("OMPI_MCA_btl_tcp_if_include", "lo");
        }
        match hosts {
            Hosts::One => drop(command.args(["-n", "4"])),
            Hosts::Threads => {}
            Hosts::Two | Hosts::Networks => {
                command.args(["--host", "first:2,second:2"]).env("DOWN", directory.path().join("down"));
            }
        }
        command.args(["train", "run.toml", "--run-dir", "disk/out"]).env("PLIMSOLL", program());
        command.args(sets.iter().flat_map(|set| ["--set", set]));
        command.env(fail_point::SLOW, format!("{}:{}", slow.0, slow.1));
        command.env("PLIMSOLL_START_SECONDS", "8").stdout(Stdio::null());
        command.stderr(File::create(directory.path().join("stderr")).unwrap());
        let child = command.spawn().unwrap();
        Some(Restarted { directory, child, hosts, disk })
    }

    /// Returns the id of the process that restarts the job.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the run directory as seen from this process.
    fn run_dir(&self) -> PathBuf {
        self.disk().join("out")
    }

    fn disk(&self) -> PathBuf {
        let directory = self.directory.path();
        self.disk.as_ref().map_or_else(|| directory.join("disk"), |disk| disk.root(directory))
    }

    /// Returns the process id of a rank, if it has one.
    pub(crate) fn pid(&self, rank: usize) -> Option<u32> {
        let path = self.run_dir().join(format!("logs/rank-{rank}.status"));
        let record = std::fs::read_to_string(path).ok()?;
        record.lines().find_map(|line| line.strip_prefix("pid = "))?.trim().parse().ok()
    }

    /// Kills a rank, and waits for restart `number`.
    pub(crate) fn kill_rank(&mut self, rank: usize, number: usize) {
        self.pid(rank).into_iter().for_each(|pid| self.signal("KILL", pid));
        self.await_message(&format!("restart {number} from"));
    }

    /// Waits until the job has printed `words`. Returns everything that it has printed.
    pub(crate) fn await_message(&mut self, words: &str) -> String {
        let began = Instant::now();
        loop {
            let messages = self.messages();
            if messages.contains(words) {
                return messages;
            }
            assert!(!self.has_ended() && began.elapsed() < LIMIT, "{messages}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Flips a bit in `file` of the newest checkpoint. Returns the steps of that checkpoint and of the one
    /// before.
    pub(crate) fn damage_newest(&self, file: &str) -> (u64, u64) {
        let mut all = list(&self.run_dir()).unwrap();
        let (step, path) = all.pop().unwrap();
        let mut bytes = std::fs::read(path.join(file)).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(path.join(file), bytes).unwrap();
        (step, all.pop().unwrap().0)
    }

    /// Returns the process id of the running launcher.
    pub(crate) fn launcher(&self) -> Option<u32> {
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.id())).ok()?;
        let command = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let mut children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
        // Other children guard the job and watch the simulated cables.
        children.find(|pid| command(pid).trim() == "mpirun")
    }

    /// Returns the directory of the job's in-memory states.
    pub(crate) fn states(&self) -> PathBuf {
        let prefix = format!("plimsoll-{}-", self.id());
        let all = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        let mut own = all.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
        own.next().map_or_else(|| Path::new("/dev/shm").join(prefix), |entry| entry.path())
    }

    /// Returns the newest in-memory state and its step.
    pub(crate) fn newest_state(&self) -> Option<(u64, PathBuf)> {
        let hosts = std::fs::read_dir(self.states()).ok()?.flatten();
        hosts.flat_map(|host| list(&host.path()).unwrap_or_default()).max()
    }

    /// Waits until every host has an in-memory state of `step` or later. Returns the smallest step among the
    /// hosts' newest states.
    pub(crate) fn await_state(&mut self, step: u64) -> u64 {
        let count = match self.hosts {
            Hosts::One | Hosts::Threads => 1,
            Hosts::Two | Hosts::Networks => 2,
        };
        let began = Instant::now();
        loop {
            let hosts: Vec<_> = std::fs::read_dir(self.states()).into_iter().flatten().flatten().collect();
            let newest = hosts.iter().filter_map(|host| Some(list(&host.path()).ok()?.last()?.0));
            let newest: Vec<_> = newest.filter(|newest| *newest >= step).collect();
            if let Some(oldest) = newest.iter().min()
                && newest.len() == count
            {
                return *oldest;
            }
            assert!(!self.has_ended() && began.elapsed() < LIMIT, "{}", self.messages());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until the first rank with a status file has begun `step`.
    pub(crate) fn await_step(&mut self, step: u64) {
        let began = Instant::now();
        let of_record = |record: String| -> Option<u64> {
            record.lines().find_map(|line| line.strip_prefix("step = "))?.trim().parse().ok()
        };
        let path = self.run_dir().join("logs/rank-0.status");
        while std::fs::read_to_string(&path).ok().and_then(of_record).is_none_or(|now| now < step) {
            assert!(!self.has_ended() && began.elapsed() < LIMIT, "{}", self.messages());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Sends a signal to a process of this job, which may already have ended.
    pub(crate) fn signal(&self, name: &str, pid: u32) {
        let own = self.directory.path().to_string_lossy().into_owned();
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        if String::from_utf8_lossy(&environment).contains(&own) {
            let arguments = [format!("-{name}"), pid.to_string()];
            let _ = Command::new("kill").args(arguments).stderr(Stdio::null()).status();
        }
    }

    /// Kills all processes of a simulated host, which does not respond until the returned file is removed.
    pub(crate) fn lose(&self, host: &str) -> PathBuf {
        let down = self.directory.path().join(format!("down-{host}"));
        std::fs::write(&down, "").unwrap();
        let mark = format!("FAKED_HOST={host}");
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            if environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes()) {
                self.signal("KILL", pid);
            }
        }
        down
    }

    /// Disconnects a host until the returned file is removed.
    pub(crate) fn cut(&self, host: &str) -> PathBuf {
        let cut = self.directory.path().join(format!("cut-{host}"));
        std::fs::write(&cut, "").unwrap();
        cut
    }

    /// Fills the disk of the run directory, if it is a separate one, with the returned file.
    pub(crate) fn fill_disk(&self) -> PathBuf {
        let filler = self.disk().join("filler");
        if self.disk.is_some() {
            // The write fails when the disk is full.
            let _ = std::fs::write(&filler, vec![0; 64 << 20]);
        }
        filler
    }

    /// Kills rank 1 at every start, just before it trains.
    pub(crate) fn disturb_every_start(&self) {
        let mut last = None;
        let began = Instant::now();
        for _ in 0..2 {
            while self.pid(1).is_none_or(|pid| Some(pid) == last) {
                assert!(began.elapsed() < LIMIT, "{}", self.messages());
                std::thread::sleep(Duration::from_millis(2));
            }
            last = self.pid(1);
            last.into_iter().for_each(|pid| self.signal("KILL", pid));
        }
    }

    /// Waits until there is a checkpoint of `step` or later.
    pub(crate) fn await_checkpoint(&mut self, step: u64) {
        let began = Instant::now();
        while list(&self.run_dir())
            .ok()
            .and_then(|all| Some(all.last()?.0))
            .is_none_or(|newest| newest < step)
        {
            assert!(!self.has_ended() && began.elapsed() < LIMIT, "{}", self.messages());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for `time`, or until the job ends.
    pub(crate) fn wait(&mut self, time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time && !self.has_ended() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn messages(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("stderr")).unwrap_or_default()
    }

    /// Waits for the end of the job.
    pub(crate) fn end(mut self) -> Output {
        self.finish()
    }

    fn finish(&mut self) -> Output {
        let began = Instant::now();
        while !self.has_ended() {
            if began.elapsed() > LIMIT {
                signal("KILL", self.id());
                panic!("it did not end: {}", self.messages());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let status = self.child.wait().unwrap();
        Output { status, stdout: Vec::new(), stderr: self.messages().into_bytes() }
    }

    /// Waits for the end of the job, and compares it with an undisturbed run. Returns the records of its
    /// sessions.
    pub(crate) fn ends_as(mut self, whole: &Value) -> Vec<Value> {
        let output = self.finish();
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{message}");
        let run_dir = self.run_dir();
        let ended = summary(&run_dir);
        for key in ["weights_sha256", "losses", "validation_loss"] {
            assert_eq!(ended[key], whole[key], "{key}: {message}");
        }
        let lines = std::fs::read_to_string(run_dir.join("metrics.jsonl")).unwrap();
        assert_eq!(lines.lines().count(), whole["losses"].as_array().unwrap().len());
        for (step, checkpoint) in list(&run_dir).unwrap() {
            assert_eq!(Checkpoint::open(&checkpoint).unwrap().step(), step);
        }
        serde_json::from_slice(&std::fs::read(run_dir.join("sessions.json")).unwrap()).unwrap()
    }
}

impl Drop for Restarted {
    fn drop(&mut self) {
        // A second signal ends a job immediately.
        for _ in 0..50 {
            if self.has_ended() {
                return;
            }
            signal("TERM", self.id());
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}
