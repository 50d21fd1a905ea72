//! Ranks as processes, started by an MPI launcher such as `mpirun` or `srun`.
//!
//! [`start`] joins the job and returns this process's [`World`] and [`Communicator`]. Calls of the
//! communicator never block inside MPI: requests are started, then polled until the deadline. A rank that
//! fails announces it to all others. A process that disappeared from this host is detected; a silent rank is
//! found by asking the others.
//!
//! MPI is used only from the thread that called [`start`], which should be the process's first.

mod deadline;
mod link;
mod native;
mod processes;
mod raw;
mod shared;
mod siblings;
mod wire;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ::mpi::Threading;
use ::mpi::environment;
use ::mpi::topology::Communicator as _;

use crate::communicator::Communicator;
use crate::error::{CollectiveError, Failure};
use crate::host::{HostControl, HostData};
use crate::traffic::Meter;
use deadline::Deadline;
use link::MpiLink;
pub use processes::{Process, Processes};
use raw::{Channel, Fault};
use shared::{Library, Shared};
use system::fail_point;

/// Errors while joining a job.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// MPI was already started in this process.
    #[error("MPI can be started only once in a process")]
    Twice,
    /// The MPI library does not support threads.
    #[error("this MPI library does not allow a process to have several threads")]
    Threads,
    /// The thread that enforces the deadline cannot be started.
    #[error("no thread can be started: {0}")]
    Deadline(std::io::Error),
    /// The MPI library failed.
    #[error("MPI error {code}: {text}")]
    Library {
        /// MPI's error code.
        code: i64,
        /// MPI's text for the error.
        text: String,
    },
    /// The ranks could not exchange their identities.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// A rank's message about its process could not be decoded.
    #[error("rank {rank} sent an invalid description of its process")]
    Unknown {
        /// The rank.
        rank: usize,
    },
}

impl From<Fault> for StartError {
    fn from(Fault { code, text }: Fault) -> Self {
        StartError::Library { code, text }
    }
}

/// This process's membership in the job. It stays on the thread that started it.
pub struct World {
    shared: Rc<Shared>,
    local: (usize, usize),
    processes: Arc<Processes>,
}

/// Joins the job that a launcher started; a process without a launcher is a world of one. `timeout` is the
/// longest time that a peer may be silent. Waits for all ranks of the job.
///
/// # Errors
/// MPI was started before or fails, or another rank does not arrive.
pub fn start(timeout: Duration) -> Result<(World, Communicator), StartError> {
    let late = move || {
        let (seconds, why) = (timeout.as_secs(), siblings::why_incomplete());
        format!("the ranks of the job did not all start within {seconds} s: {why}")
    };
    let deadline = Deadline::start(timeout, siblings::own_rank(), "all ranks of the job to start", late);
    let deadline = deadline.map_err(StartError::Deadline)?;
    fail_point::reach("MPI about to start");
    let (universe, threading) =
        environment::initialize_with_threading(Threading::Funneled).ok_or(StartError::Twice)?;
    if threading < Threading::Funneled {
        return Err(StartError::Threads);
    }
    let world = universe.world();
    let (rank, size) = (world.rank() as usize, world.size() as usize);
    let neighbours = world.split_shared(world.rank());
    let local = (neighbours.rank() as usize, neighbours.size() as usize);
    let processors = system::threads::processors();
    // A process that is bound to one processor sees only that one.
    let crowded = processors > 1 && processors < local.1;
    let library = Library {
        traffic: Channel::new(world.duplicate())?,
        notices: Channel::new(world.duplicate())?,
        universe,
    };
    // Calls of the communicator have their own deadlines.
    drop(deadline);
    let shared = Rc::new(Shared::new(rank, size, library, timeout, crowded));
    let link = |context| MpiLink::new(Rc::clone(&shared), (0..size).collect(), context);
    let data = HostData::new(link(link::DATA), Meter::default());
    let mut communicator = Communicator::new(HostControl::new(link(link::CONTROL)), data);
    let printed = communicator.control.all_gather(&Process::own().encode())?;
    let known = |(rank, text): (usize, &Vec<u8>)| Process::decode(text).ok_or(StartError::Unknown { rank });
    let all = printed.iter().enumerate().map(known).collect::<Result<_, _>>()?;
    let processes = Arc::clone(shared.processes.get_or_init(|| Arc::new(Processes::new(rank, all))));
    Ok((World { shared, local, processes }, communicator))
}

impl World {
    /// This rank's number.
    pub fn rank(&self) -> usize {
        self.shared.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.shared.size
    }

    /// This rank's number among the ranks of its host, and their count.
    pub fn local(&self) -> (usize, usize) {
        self.local
    }

    /// The processes of all ranks.
    pub fn processes(&self) -> Arc<Processes> {
        Arc::clone(&self.processes)
    }

    /// Sets what all ranks are to do before their next calls, as in `open its data`: while one has not, the
    /// user is reported which. `None` once they train.
    pub fn set_doing(&self, doing: Option<&'static str>) {
        self.shared.doing.set(doing);
    }

    /// Sets the longest time that a peer may be silent from now on.
    pub fn set_timeout(&self, timeout: Duration) {
        self.shared.timeout.set(timeout);
    }

    /// Announces to all ranks that this one ends, with the reason, unless a rank failed before.
    pub fn fail(&self, reason: &str) {
        self.shared.fail(self.rank(), reason);
    }

    /// The first failure in the world that this rank knows of.
    pub fn failure(&self) -> Option<Failure> {
        self.shared.failure()
    }

    /// Announces that this rank has made all its calls, waits until all ranks have, and finalizes MPI.
    /// Launchers treat a process that ends without finalizing as failed.
    ///
    /// # Errors
    /// A failure of a rank in the meantime.
    pub fn finish(self) -> Result<(), Failure> {
        self.processes.end();
        let World { shared, processes, .. } = self;
        shared.finish()?;
        let (timeout, rank) = (shared.timeout.get(), shared.rank);
        let late = move || {
            let stopped = processes.first_stopped();
            let who = stopped.map_or("a rank".to_owned(), |rank| format!("rank {rank}, which has stopped,"));
            format!("all ranks had done their work, and {who} did not end within {} s", timeout.as_secs())
        };
        // Without a thread, MPI is finalized without a deadline.
        let deadline = Deadline::start(timeout, rank, "all ranks to end", late);
        fail_point::reach("MPI about to end");
        // Finalizes MPI.
        drop(shared);
        drop(deadline);
        Ok(())
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "World(rank {} of {})", self.rank(), self.size())
    }
}
