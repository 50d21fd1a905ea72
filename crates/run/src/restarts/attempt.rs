//! One start of a job: the launcher's process, its end, and the removal of processes that outlive it.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use system::terminal;

use super::guard::Guard;
use super::memory::MemoryOfJob;
use super::processes;
use super::stops::Stops;
use crate::cause::{self, Cause};
use crate::error::{Result, RunError};
use crate::failure;
use crate::memory_states;

/// Interval between checks of the launcher.
const LOOK: Duration = Duration::from_millis(20);
/// Time limit for a stopped launcher to continue, or for a launcher to end after a rank reported a failure.
const LAUNCHER_ENDS: Duration = Duration::from_secs(5);
/// Time limit for ranks without a launcher to end by themselves and report why.
const RANKS_END: Duration = Duration::from_secs(2);

/// How a start of a job ended.
#[derive(Debug, PartialEq)]
pub(super) enum Ended {
    /// All ranks ended without an error.
    Done,
    /// All ranks ended without an error after a request, so that the job can restart on a larger grid.
    ToGrow,
    /// The user stopped the job, which ended with this exit status.
    Stopped(u8),
    /// The command line, configuration or data is wrong.
    Refused,
    /// The launcher or a rank failed, for this reason.
    Failed(String),
}

/// A running job.
#[derive(Debug)]
pub(super) struct Attempt {
    launcher: Child,
    name: String,
    /// The value of [`processes::VARIABLE`] in the job's processes.
    id: String,
    logs: PathBuf,
    started: SystemTime,
    /// Number of signals forwarded so far.
    forwarded: usize,
    to_grow: bool,
    /// Time at which the launcher was first seen stopped or stuck.
    hangs_since: Option<Instant>,
    /// Whether this process has killed the launcher.
    is_killed: bool,
    /// Ends the launcher if this process is killed.
    _guard: Guard,
}

impl Attempt {
    /// Starts the launcher in its own process group, so that a terminal's signals reach it only through this
    /// process.
    ///
    /// # Errors
    /// The launcher does not start.
    pub(super) fn start(
        mut command: Command,
        cause: Option<&Cause>,
        memory: &MemoryOfJob,
        logs: &Path,
    ) -> Result<Self> {
        let started = SystemTime::now();
        let since_1970 = started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let id = format!("{}-{}", std::process::id(), since_1970.as_nanos());
        command.env(processes::VARIABLE, &id).stdin(Stdio::null()).process_group(0);
        command.env(memory_states::VARIABLE, memory.name());
        let mut passed = vec![processes::VARIABLE, memory_states::VARIABLE];
        if let Some(cause) = cause {
            command.env(cause::VARIABLE, cause.encode());
            passed.push(cause::VARIABLE);
        }
        // Open MPI passes these variables on to other hosts.
        command.env("OMPI_MCA_mca_base_env_list", passed.join(";"));
        let name = command.get_program().to_string_lossy().into_owned();
        let mut guard = Guard::start(memory.directory());
        let launcher = command
            .spawn()
            .map_err(|error| RunError::Refused(format!("{name} cannot be started: {error}")))?;
        guard.watch(launcher.id());
        Ok(Attempt {
            launcher,
            name,
            id,
            logs: logs.to_owned(),
            started,
            forwarded: 0,
            to_grow: false,
            hangs_since: None,
            is_killed: false,
            _guard: guard,
        })
    }

    /// Waits until the job has ended and none of its processes is left on this host. Once `grows` returns
    /// true, the ranks are asked to end after their step.
    ///
    /// # Errors
    /// The system does not report how the launcher ended.
    pub(super) fn wait(mut self, stops: &Stops, mut grows: impl FnMut() -> bool) -> Result<Ended> {
        let status = loop {
            let unknown = |error| RunError::Refused(format!("{}: its end is unknown: {error}", self.name));
            if let Some(status) = self.launcher.try_wait().map_err(unknown)? {
                break status;
            }
            self.forward(stops.count());
            if !self.to_grow && self.forwarded == 0 && grows() {
                self.to_grow = true;
                self.ask_to_stop();
            }
            if self.hangs() {
                self.is_killed = true;
                processes::signal("KILL", &[self.launcher.id()]);
            }
            sleep(LOOK);
        };
        self.end_what_is_left();
        Ok(self.ended(status))
    }

    /// Forwards stop signals: the first ends the job after the current step, the second at once.
    fn forward(&mut self, signals: usize) {
        if signals > 0 && self.forwarded == 0 {
            terminal::say("plimsoll: stopping after this step; once more to stop at once");
            self.ask_to_stop();
        } else if signals > 1 && self.forwarded == 1 {
            processes::signal("TERM", &[self.launcher.id()]);
        }
        self.forwarded = self.forwarded.max(signals.min(2)).min(self.forwarded + 1);
    }

    /// Asks the ranks to end after their step. Not every launcher forwards the signal, but one rank that
    /// receives it is enough.
    fn ask_to_stop(&self) {
        let asked = processes::with_launcher(processes::ranks_of_job(&self.id), self.launcher.id());
        processes::signal("USR1", &asked);
    }

    /// Returns whether the launcher has been stopped or stuck for too long. It is stuck if it still runs
    /// after a rank's failure report.
    fn hangs(&mut self) -> bool {
        let is_stopped = processes::state(self.launcher.id()) == Some('T');
        if !(is_stopped || self.has_report()) {
            self.hangs_since = None;
            return false;
        }
        self.hangs_since.get_or_insert_with(Instant::now).elapsed() > LAUNCHER_ENDS
    }

    /// Returns whether a rank of this start has reported a failure.
    fn has_report(&self) -> bool {
        let written = self.logs.join(failure::REPORT).metadata().and_then(|metadata| metadata.modified());
        written.is_ok_and(|written| written >= self.started)
    }

    /// Returns the first line of the ranks' failure report, or else `launcher`, a text about the launcher's
    /// end.
    fn reason(&self, launcher: String) -> String {
        let reported =
            Some(&self.logs).filter(|_| self.has_report()).and_then(|logs| failure::reported(logs));
        reported.unwrap_or(launcher)
    }

    /// Waits for processes of this job on this host that outlive the launcher, and kills them after a time
    /// limit.
    fn end_what_is_left(&self) {
        let began = Instant::now();
        while !processes::of_job(&self.id).is_empty() {
            if began.elapsed() > RANKS_END {
                processes::signal("KILL", &processes::of_job(&self.id));
            }
            sleep(LOOK);
        }
    }

    fn ended(&self, status: ExitStatus) -> Ended {
        if self.forwarded > 0 {
            let killed = status.signal().and_then(|signal| u8::try_from(128 + signal).ok());
            return Ended::Stopped(
                status.code().and_then(|code| u8::try_from(code).ok()).or(killed).unwrap_or(1),
            );
        }
        let name = &self.name;
        let failed = |how: String| Ended::Failed(self.reason(format!("{name} {how}")));
        match status.code() {
            _ if status.success() && self.to_grow => Ended::ToGrow,
            _ if status.success() => Ended::Done,
            _ if self.is_killed => failed("did not go on, and was killed".to_owned()),
            Some(2) => Ended::Refused,
            Some(code) => failed(format!("ended with status {code}")),
            None => failed(format!("was killed by signal {}", status.signal().unwrap_or(0))),
        }
    }
}
