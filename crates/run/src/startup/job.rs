//! This process as a rank of its launcher's job, over MPI or TCP.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use collective::tcp::{self, Member};
use collective::{Communicator, Failure, Transport, World};
use system::{terminal, threads};

use crate::error::{JobError, Result, RunError};
use crate::failure::{self, Lost};
use crate::startup::launcher::{Environment, Launcher};

/// Seconds a rank may be silent before the configured timeout is known.
const START_SECONDS: u64 = 60;
/// Seconds within which all ranks must connect over TCP; containers may start minutes apart.
const CONNECT_SECONDS: u64 = 300;
/// Interval at which the watching thread checks the other processes on this host.
const LOOK: Duration = Duration::from_millis(100);
/// Time left to a rank that finds another one dead to report it and end by itself.
const OWN_WORDS: Duration = Duration::from_millis(500);

/// This process as a rank of its job.
#[derive(Debug)]
pub(crate) struct Job {
    world: World,
    communicator: Communicator,
}

impl Job {
    /// Joins the job that the launcher started.
    ///
    /// # Errors
    /// MPI or TCP does not start, or an MPI launcher started a build without MPI.
    pub(crate) fn join(launcher: Launcher) -> Result<Option<Self>> {
        let start_seconds = Environment::of_process().start_seconds()?;
        let wait = |default: u64| Duration::from_secs(start_seconds.unwrap_or(default));
        let joined = match launcher {
            Launcher::Mpi(processes) => over_mpi(processes, wait(START_SECONDS))?,
            Launcher::Variables(member) => {
                Some(over_tcp(&member, [CONNECT_SECONDS, START_SECONDS].map(wait))?)
            }
        };
        let Some((world, communicator)) = joined else { return Ok(None) };
        // The number of threads changes no result.
        let (_, neighbours) = world.local();
        if let Some(warning) = threads::start_computing(neighbours).map_err(RunError::Refused)? {
            terminal::say(&format!("plimsoll: {warning}"));
        }
        Ok(Some(Job { world, communicator }))
    }

    pub(crate) fn rank(&self) -> usize {
        self.world.rank()
    }

    pub(crate) fn size(&self) -> usize {
        self.world.size()
    }

    /// Returns whether an MPI library connects the ranks.
    pub(crate) fn has_mpi(&self) -> bool {
        matches!(self.world.transport(), Transport::Mpi { .. })
    }

    /// Returns (this rank's index on its host, number of ranks on the host).
    pub(crate) fn local(&self) -> (usize, usize) {
        self.world.local()
    }

    pub(crate) fn host(&self, rank: usize) -> String {
        self.world.processes().all().get(rank).map_or_else(String::new, |process| process.host.clone())
    }

    /// Sets the task named when ranks wait for one another.
    pub(crate) fn set_doing(&self, doing: &'static str) {
        self.world.set_doing(Some(doing));
    }

    /// Gathers a text from every rank, in rank order.
    pub(crate) fn all_gather_text(&mut self, mine: &str) -> Result<Vec<String>> {
        let all = self.communicator.control.all_gather(mine.as_bytes())?;
        Ok(all.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect())
    }

    /// Replaces `message` on all ranks by the message of rank `root`.
    pub(crate) fn broadcast(&mut self, root: usize, message: &mut Vec<u8>) -> Result<()> {
        Ok(self.communicator.control.broadcast(root, message)?)
    }

    /// Agrees with all ranks on a result. Also returns whether all ranks must end now.
    pub(crate) fn agree<T, E: JobError>(
        &mut self,
        mine: std::result::Result<T, E>,
    ) -> (std::result::Result<T, E>, bool) {
        let printed = mine.as_ref().err().map(|error| format!("{} {error}", error.exit_status()));
        let all = match self.all_gather_text(printed.as_deref().unwrap_or_default()) {
            Ok(all) => all,
            Err(error) => return (Err(error.into()), false),
        };
        let Some((rank, text)) = all.iter().enumerate().find(|(_, text)| !text.is_empty()) else {
            return (mine, false);
        };
        let (status, text) = text.split_once(' ').unwrap_or(("1", text));
        let status = status.parse().unwrap_or(1);
        let error = match (self.rank(), rank) {
            (0, 0) => return (mine, true),
            (0, _) => {
                RunError::Elsewhere { status, text: format!("rank {rank} on {}: {text}", self.host(rank)) }
            }
            _ => RunError::Reported { status },
        };
        (Err(error.into()), true)
    }

    /// Starts a thread that ends this process when another process of the job on this host has died. The
    /// worker itself may be in a long computation, and a launcher waits only about a second.
    pub(crate) fn watch(&self, logs: &Path) -> Result<()> {
        let processes = self.world.processes();
        let logs = logs.to_owned();
        let watch = move || {
            loop {
                sleep(LOOK);
                let Some(rank) = processes.gone() else { continue };
                sleep(OWN_WORDS);
                if processes.gone().is_none() {
                    continue;
                }
                let host = processes.all()[rank].host.clone();
                let lost = Lost { rank, host, reason: processes.reason(rank) };
                if let Some(report) = failure::report(&logs, processes.all().len(), &lost) {
                    terminal::say(&format!("plimsoll: {report}"));
                }
                system::exit::exit(1);
            }
        };
        let refused =
            |error| RunError::Refused(format!("a thread to watch other ranks cannot be started: {error}"));
        threads::spawn("watch", watch).map(drop).map_err(refused)
    }

    /// Runs `body` as this rank.
    ///
    /// # Errors
    /// The first rank that failed, this one or another.
    pub(crate) fn run<T, E: Display>(
        self,
        timeout_seconds: u64,
        body: impl FnOnce(Communicator) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, Lost> {
        let Job { world, communicator } = self;
        world.set_timeout(Duration::from_secs(timeout_seconds));
        world.set_doing(None);
        let reason = match catch_unwind(AssertUnwindSafe(|| body(communicator))) {
            Ok(Ok(value)) => match world.failure() {
                None => return finish(world).map(|()| value),
                Some(failure) => failure.reason,
            },
            Ok(Err(error)) => failure::sentence(&error),
            Err(payload) => failure::panic_text(&*payload),
        };
        world.fail(&reason);
        let own = Failure { rank: world.rank(), reason };
        Err(lost(&world, world.failure().unwrap_or(own)))
    }

    /// Runs `body`, which is work other than training.
    ///
    /// # Errors
    /// The first rank that failed.
    pub(crate) fn run_plain(
        self,
        body: impl FnOnce(&World, Communicator) -> std::result::Result<(), String>,
    ) -> Result<()> {
        let Job { world, communicator } = self;
        let ended = match body(&world, communicator) {
            Ok(()) => finish(world),
            Err(reason) => {
                world.fail(&reason);
                let own = Failure { rank: world.rank(), reason };
                Err(lost(&world, world.failure().unwrap_or(own)))
            }
        };
        ended.map_err(|Lost { rank, reason, .. }| RunError::Rank { rank, reason })
    }

    /// Waits for all other ranks to end.
    pub(crate) fn finish(self) -> std::result::Result<(), Lost> {
        let Job { world, communicator } = self;
        drop(communicator);
        finish(world)
    }
}

/// Joins over TCP. All ranks must connect within `connect`; after that, none may be silent for longer than
/// `silence`.
fn over_tcp(member: &Member, [connect, silence]: [Duration; 2]) -> Result<(World, Communicator)> {
    let (world, communicator) = tcp::start(member, connect).map_err(|error| match error {
        tcp::StartError::Refused(why) => RunError::Refused(why),
        tcp::StartError::Absent(why) => RunError::Failed(why),
        tcp::StartError::Identity(error) => RunError::Failed(error.to_string()),
    })?;
    world.set_timeout(silence);
    Ok((world, communicator))
}

#[cfg(feature = "mpi")]
fn over_mpi(processes: usize, silence: Duration) -> Result<Option<(World, Communicator)>> {
    let (world, communicator) = collective::mpi::start(silence)
        .map_err(|error| RunError::Refused(format!("MPI does not start: {error}")))?;
    let joined = world.size();
    if joined == processes {
        return Ok(Some((world, communicator)));
    }
    // Otherwise each of them would run as the only process.
    drop(communicator);
    let _ = world.finish();
    Err(RunError::Refused(format!(
        "a launcher started {processes} processes, and MPI joins this one to {joined}: the launcher is not \
         that of the MPI library that this program was built with"
    )))
}

/// Returns an error for a job that only a build with MPI could join. A launcher with one process needs none.
#[cfg(not(feature = "mpi"))]
fn over_mpi(processes: usize, _: Duration) -> Result<Option<(World, Communicator)>> {
    if processes == 1 {
        return Ok(None);
    }
    Err(RunError::Refused(format!(
        "a launcher started {processes} processes, and this build has no MPI: build it with \
         `cargo build --release --features mpi`, or start it through `./launch/mpirun -n {processes}`, which \
         does; without MPI, a launcher sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun does, \
         and --ranks {processes} makes the ranks threads of one process"
    )))
}

fn lost(world: &World, Failure { rank, reason }: Failure) -> Lost {
    let host = world.processes().all().get(rank).map_or_else(String::new, |process| process.host.clone());
    Lost { rank, host, reason }
}

fn finish(world: World) -> std::result::Result<(), Lost> {
    let processes = world.processes();
    world.finish().map_err(|Failure { rank, reason }| {
        let host = processes.all().get(rank).map_or_else(String::new, |process| process.host.clone());
        Lost { rank, host, reason }
    })
}

#[cfg(all(test, feature = "mpi"))]
mod tests {
    use std::process::Command;

    use super::*;

    /// A panic in one rank ends the job, and the other ranks report its message.
    #[test]
    fn a_panic_ends_the_job() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("mpirun");
        // Jobs that make one session directory at the same time fail.
        command.env("OMPI_MCA_orte_tmpdir_base", directory.path());
        command.args(["-n", "2"]).arg(std::env::current_exe().unwrap());
        command.args(["startup::job::tests::one_rank", "--exact", "--ignored", "--nocapture"]);
        for variable in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
            command.env(variable, "1");
        }
        command.env("OMPI_MCA_rmaps_base_oversubscribe", "1").env("OMPI_MCA_plm", "isolated");
        // The test needs a launcher.
        let Ok(output) = command.output() else {
            system::skipped::report(system::skipped::Need::Mpi, "there is no mpirun");
            return;
        };
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{printed}");
        assert!(printed.contains("lost rank 1: panicked: index 7 of 7"), "{printed}");
    }

    #[test]
    #[ignore = "one process of a job that another test starts"]
    fn one_rank() {
        let job = Job::join(Launcher::Mpi(2)).unwrap().unwrap();
        let body = |mut communicator: Communicator| -> Result<()> {
            match communicator.rank() {
                1 => panic!("index 7 of {}", 7),
                _ => Ok(communicator.control.barrier()?),
            }
        };
        let lost = job.run(30, body).unwrap_err();
        println!("lost rank {}: {}", lost.rank, lost.reason);
        system::exit::exit(1);
    }
}
