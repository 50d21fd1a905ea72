//! Ranks as processes, started by an MPI launcher such as `mpirun` or `srun`.
//!
//! [`start`] joins the job and returns this process's [`World`] and [`Communicator`]. Calls never block
//! inside MPI: requests are started, then polled until the deadline. A failing rank announces it to all
//! others. Processes of this host that disappeared are detected; a silent rank is found by querying the
//! others.
//!
//! MPI is used only from the thread that called [`start`], which should be the process's first.

mod deadline;
mod link;
mod native;
mod post;
mod raw;
mod siblings;

use std::rc::Rc;
use std::time::Duration;

use ::mpi::Threading;
use ::mpi::environment;
use ::mpi::topology::Communicator as _;

use crate::communicator::Communicator;
use crate::host::{HostBackend, HostControl};
use crate::processes::{CONTROL, DATA, IdentityError, Shared, World};
use deadline::Deadline;
use link::MpiLink;
pub use native::library_all_reduce;
use post::{Library, MpiPost};
use raw::{Channel, Fault};
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
    Identity(#[from] IdentityError),
}

impl From<Fault> for StartError {
    fn from(Fault { code, text }: Fault) -> Self {
        StartError::Library { code, text }
    }
}

/// Joins the launcher's job and waits for all of its ranks. A process without a launcher is a world of one.
/// `timeout` is the longest allowed silence of a peer.
///
/// # Errors
/// MPI was started before or fails, or another rank does not arrive.
pub fn start(timeout: Duration) -> Result<(World, Communicator), StartError> {
    let late = move || {
        let seconds = timeout.as_secs();
        let why = siblings::why_incomplete();
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
    let rank = world.rank() as usize;
    let size = world.size() as usize;
    let neighbours = world.split_shared(world.rank());
    let local = (neighbours.rank() as usize, neighbours.size() as usize);
    let processors = system::threads::processors();
    // A process bound to one processor sees only that one.
    let crowded = processors > 1 && processors < local.1;
    let library = Rc::new(Library {
        traffic: Channel::new(world.duplicate())?,
        notices: Channel::new(world.duplicate())?,
        _universe: universe,
    });
    // Calls of the communicator have their own deadlines.
    drop(deadline);
    let post = Rc::new(MpiPost::new(Rc::clone(&library), crowded));
    let shared = Rc::new(Shared::new(rank, size, post, timeout));
    let link = |context| MpiLink::new(Rc::clone(&shared), Rc::clone(&library), (0..size).collect(), context);
    let backend = HostBackend::new(link(DATA));
    let mut communicator = Communicator::new(HostControl::new(link(CONTROL)), backend);
    drop(library);
    let world = World::join(shared, &mut *communicator.control, |_| local)?;
    Ok((world, communicator))
}
