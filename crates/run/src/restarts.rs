//! Restarts of a job. When a rank or a host is lost, the job starts again from its newest checkpoint, on the
//! hosts that still answer and with a grid that fits them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use checkpoint::list;
use config::RunConfig;
use plan::{Continuation, PlanOptions, continuation};
use system::terminal;
use telemetry::units::counted;

use crate::cause::Cause;
use crate::error::{Result, RunError};
use crate::failure;
use crate::sessions::{self, Ending};

mod attempt;
mod guard;
mod hostfile;
mod hosts;
mod memory;
mod named_host;
mod own_host;
mod processes;
mod question;
mod stops;

use attempt::{Attempt, Ended};
pub use hostfile::HOSTFILE;
pub use hosts::JobLauncher;
use hosts::{Answers, Host, Hosts};
use memory::MemoryOfJob;
use stops::Stops;

/// Time limit for enough hosts to answer.
const HOSTS_ANSWER: Duration = Duration::from_secs(300);
/// Interval between two queries of hosts that do not answer.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// A job that is restarted after failures.
#[derive(Debug)]
pub struct RestartedJob {
    /// How ranks are started.
    pub launcher: JobLauncher,
    /// Options of the launcher.
    pub launcher_options: Vec<OsString>,
    /// The program of a rank.
    pub program: PathBuf,
    /// Arguments of every rank at the first start, `train` first.
    pub arguments: Vec<OsString>,
    /// Arguments of every rank at later starts, which resume the run.
    pub arguments_to_resume: Vec<OsString>,
    /// The run directory.
    pub run_dir: PathBuf,
    /// The configuration.
    pub config: RunConfig,
    /// Devices and options for planning the grid.
    pub plan: PlanOptions,
    /// Number of consecutive failures without a new checkpoint that ends the job.
    pub most_failures: u64,
    /// Whether the job adds hosts that answer again, after the next checkpoint.
    pub grows: bool,
}

impl RestartedJob {
    /// Runs the job until training is complete or stopped, or until it fails too often. Returns the exit
    /// status.
    ///
    /// # Errors
    /// Launcher options cannot be read, no grid fits the hosts that answer, the launcher does not start, or
    /// there are too many failures.
    pub fn run(&self) -> Result<u8> {
        let stops = Stops::listen()?;
        let hosts = Hosts::from_options(self.launcher, &self.launcher_options, self.config.world_size())?;
        let keeps_states = self.config.checkpoint.memory_steps > 0;
        let memory = MemoryOfJob::new(keeps_states.then(|| hosts.clone()));
        let mut restarts = Restarts { job: self, hosts, memory, stops, failures: 0, newest: 0, cause: None };
        restarts.newest = restarts.newest_checkpoint();
        restarts.run()
    }
}

/// The state of a job between its starts.
struct Restarts<'a> {
    job: &'a RestartedJob,
    hosts: Hosts,
    memory: MemoryOfJob,
    stops: Stops,
    /// Consecutive failures without a new checkpoint or state in memory.
    failures: u64,
    /// Step of the newest checkpoint or state in memory at the last failure.
    newest: u64,
    /// The cause of the next start; `None` for the first.
    cause: Option<Cause>,
}

impl Restarts<'_> {
    fn run(&mut self) -> Result<u8> {
        loop {
            // Nothing of a job that was stopped before it has started is done.
            let Some((answers, grid)) = self.grid_of_hosts()? else { return Ok(self.stops.status().max(1)) };
            self.announce(&answers, &grid);
            let before = sessions::all(&self.job.run_dir).len();
            let ended = self.attempt(&answers.hosts, &grid)?;
            let ending = self.ending_of_session(before);
            let reason = match ended {
                Ended::Stopped(0) => return Ok(self.stops.status()),
                Ended::Stopped(status) => return Ok(status),
                Ended::ToGrow if ending == Some(Ending::Interrupted) => "more hosts answer".to_owned(),
                Ended::Done | Ended::ToGrow => return Ok(0),
                // The command line, configuration or data is wrong, and stays so.
                Ended::Refused => return Ok(2),
                // The run goes back of its own accord, which is no failure.
                Ended::Failed(reason) if ending == Some(Ending::Rewound) => {
                    terminal::say(&format!("plimsoll: the run goes back: {reason}"));
                    reason
                }
                Ended::Failed(reason) => self.count(reason, ending.as_ref())?,
            };
            let restart = self.cause.as_ref().map_or(1, |cause| cause.restart + 1);
            self.cause = Some(Cause::of_ranks(&self.logs(), grid.ranks, restart, reason));
            failure::forget(&self.logs());
        }
    }

    fn logs(&self) -> PathBuf {
        self.job.run_dir.join("logs")
    }

    /// Waits until enough hosts answer. Returns them with a grid that fits; `None` if the job was stopped
    /// meanwhile.
    ///
    /// # Errors
    /// Too few hosts answer within the limit, or no grid fits.
    fn grid_of_hosts(&self) -> Result<Option<(Answers, Continuation)>> {
        let began = Instant::now();
        let mut is_announced = false;
        loop {
            let answers = self.hosts.answers();
            let silent = answers.silent.join(", ");
            match self.grid(&answers.hosts) {
                Ok(grid) => return Ok(Some((answers, grid))),
                Err(error) if silent.is_empty() => return Err(error),
                Err(error) if began.elapsed() > HOSTS_ANSWER => {
                    let seconds = HOSTS_ANSWER.as_secs();
                    let text = format!("no answer from {silent} within {seconds} s: {error}");
                    return Err(RunError::Refused(text));
                }
                Err(_) if !std::mem::replace(&mut is_announced, true) => {
                    let seconds = HOSTS_ANSWER.as_secs();
                    terminal::say(&format!("plimsoll: waiting for {silent} to answer, {seconds} s at most"));
                }
                Err(_) => {}
            }
            if self.stops.count() > 0 {
                return Ok(None);
            }
            std::thread::sleep(ASK_AGAIN);
        }
    }

    fn grid(&self, hosts: &[Host]) -> Result<Continuation> {
        let slots = hosts.iter().map(|host| host.slots).sum();
        Ok(continuation(&self.job.config, &self.job.plan, slots)?)
    }

    /// Prints which hosts do not answer, the grid if it is smaller than configured, and the restart.
    fn announce(&self, answers: &Answers, grid: &Continuation) {
        if let Some(warning) = warning(answers, grid, self.job.config.world_size()) {
            terminal::say(&format!("plimsoll: warning: {warning}"));
        }
        let Some(cause) = &self.cause else { return };
        let from = self.newest_checkpoint();
        let ranks = grid.ranks;
        let from = match from {
            0 => "the beginning".to_owned(),
            step => format!("the newest state, that of step {step}"),
        };
        let sets: String = grid.sets.iter().map(|set| format!(" --set {set}")).collect();
        terminal::say(&format!("plimsoll: restart {} from {from}, {ranks} ranks{sets}", cause.restart));
    }

    /// Starts the job once, and waits for its end.
    fn attempt(&self, hosts: &[Host], grid: &Continuation) -> Result<Ended> {
        let arguments = match self.cause {
            None => &self.job.arguments,
            Some(_) => &self.job.arguments_to_resume,
        };
        let mut command = self.hosts.command(&self.job.program, hosts, grid.ranks);
        command.args(arguments);
        for set in &grid.sets {
            command.args(["--set", set]);
        }
        let attempt = Attempt::start(command, self.cause.as_ref(), &self.memory, &self.logs())?;
        let began_at = newest(&self.job.run_dir);
        let may_grow = self.job.grows && grid.ranks < self.job.config.world_size();
        let mut growth = may_grow.then(|| Growth { asked_at: began_at, asking: None });
        attempt.wait(&self.stops, || {
            let Some(growth) = &mut growth else { return false };
            growth
                .is_due(&self.job.run_dir, &self.hosts)
                .is_some_and(|hosts| self.grid(&hosts).is_ok_and(|larger| larger.ranks > grid.ranks))
        })
    }

    /// Adds a failure to the count, and returns its reason.
    ///
    /// # Errors
    /// Too many failures in a row without a new checkpoint, or a failure that recurs at every start.
    fn count(&mut self, reason: String, ending: Option<&Ending>) -> Result<String> {
        let newest = self.newest_checkpoint();
        self.failures = if newest > self.newest { 0 } else { self.failures + 1 };
        self.newest = newest;
        if matches!(ending, Some(Ending::NonFinite | Ending::Spike)) {
            return Err(RunError::Failed(format!("{reason}; a restart would end in the same way")));
        }
        if reason.contains(worker::CORRUPTION) {
            return Err(RunError::Failed(format!("{reason}; a restart could use the same hardware")));
        }
        if self.failures >= self.job.most_failures {
            let since = match newest {
                0 => "without a checkpoint".to_owned(),
                step => format!("since the checkpoint of step {step}"),
            };
            let failures = self.failures;
            return Err(RunError::Failed(format!("{failures} failures {since}; the last: {reason}")));
        }
        terminal::say(&format!("plimsoll: the job failed: {reason}"));
        Ok(reason)
    }

    /// Returns the step of the newest checkpoint, or of a newer state in this machine's memory.
    fn newest_checkpoint(&self) -> u64 {
        newest(&self.job.run_dir).max(self.memory.newest())
    }

    /// Returns how the last session ended; `None` if it is one of the first `before` sessions, which belong
    /// to earlier starts.
    fn ending_of_session(&self, before: usize) -> Option<Ending> {
        sessions::all(&self.job.run_dir).drain(..).skip(before).last().map(|session| session.ending)
    }
}

/// Returns a warning about hosts that do not answer, or about a grid smaller than the `configured` number of
/// ranks; `None` if neither is the case.
fn warning(answers: &Answers, grid: &Continuation, configured: usize) -> Option<String> {
    let silent = match answers.silent.is_empty() {
        true => None,
        false => Some(format!("no answer from {}", answers.silent.join(", "))),
    };
    if grid.ranks >= configured {
        return silent.map(|silent| format!("{silent}; the other hosts take all {configured} ranks"));
    }
    let slots = answers.hosts.iter().map(|host| host.slots).sum::<usize>() as u64;
    let why = silent.unwrap_or_else(|| format!("the hosts take {}", counted(slots, "rank")));
    let ranks = counted(grid.ranks as u64, "rank");
    Some(format!(
        "{why}: the job has {ranks} instead of the {configured} configured, {}",
        grid.sets.join(", ")
    ))
}

/// Returns whether this process is a rank of a job that another process restarts after a failure.
pub(crate) fn is_restarted() -> bool {
    processes::is_of_job()
}

/// Returns the step of a run's newest checkpoint; 0 if there is none.
fn newest(run_dir: &Path) -> u64 {
    list(run_dir).ok().and_then(|all| all.last().map(|(step, _)| *step)).unwrap_or(0)
}

/// Queries silent hosts after each checkpoint of a job on fewer ranks than configured.
struct Growth {
    /// Step of the checkpoint after which the hosts were last queried.
    asked_at: u64,
    asking: Option<std::thread::JoinHandle<Vec<Host>>>,
}

impl Growth {
    /// Starts a query after each new checkpoint. Returns the hosts that answered, once it is finished.
    fn is_due(&mut self, run_dir: &Path, hosts: &Hosts) -> Option<Vec<Host>> {
        if let Some(asking) = self.asking.take_if(|asking| asking.is_finished()) {
            return asking.join().ok();
        }
        let newest = newest(run_dir);
        if self.asking.is_none() && newest > self.asked_at {
            self.asked_at = newest;
            let hosts = hosts.clone();
            self.asking = system::threads::spawn("hosts", move || hosts.answers().hosts).ok();
        }
        None
    }
}
