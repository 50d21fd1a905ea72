//! Ranks as threads of one process.
//!
//! [`run`] gives each rank a thread and bounded queues to all others. The first rank that fails or panics
//! ends all ranks: waiting ranks wake up with an error that contains its number and reason.

pub(crate) mod link;
mod mesh;
mod signal;
mod world;

use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, never, select, unbounded};
use system::threads;

use crate::communicator::Communicator;
use crate::host::{HostBackend, HostControl};
use link::ThreadLink;
use mesh::Mesh;
use world::World;

/// Time limits of waits between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Longest allowed silence of a peer.
    pub timeout: Duration,
    /// Time after a failure for other ranks to end before they are abandoned.
    pub grace: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options { timeout: Duration::from_secs(60), grace: Duration::from_secs(5) }
    }
}

/// The first failure in a world, which ended it.
#[derive(Debug, thiserror::Error)]
#[error("rank {rank}: {cause}{}", left_behind(abandoned))]
pub struct RunError<E: Display> {
    /// Rank that failed first.
    pub rank: usize,
    /// The cause of the failure.
    pub cause: Cause<E>,
    /// Ranks that had not ended after the grace time. Their threads end with the process.
    pub abandoned: Vec<usize>,
}

/// The cause of a rank's failure.
#[derive(Debug, thiserror::Error)]
pub enum Cause<E: Display> {
    /// The rank returned an error.
    #[error("{0}")]
    Error(E),
    /// The rank panicked.
    #[error("panicked: {0}")]
    Panic(String),
    /// The rank called [`crate::ControlChannel::fail`].
    #[error("{0}")]
    Declared(String),
    /// The rank's thread could not be started.
    #[error("its thread cannot be started: {0}")]
    Spawn(std::io::Error),
}

fn left_behind(ranks: &[usize]) -> String {
    if ranks.is_empty() { String::new() } else { format!(" (ranks {ranks:?} did not stop in time)") }
}

type Outcome<T, E> = Result<T, Cause<E>>;

/// Runs `body` as every rank of a world, each on a thread `rank-N`, and returns the results in rank order.
///
/// # Errors
/// The first failure: a rank returned an error, panicked or called [`crate::ControlChannel::fail`]. The other
/// ranks' pending and later calls then return [`crate::CollectiveError::PeerFailed`], so that they end as
/// well.
pub fn run<T, E, F>(world_size: usize, options: Options, body: F) -> Result<Vec<T>, RunError<E>>
where
    F: Fn(Communicator) -> Result<T, E> + Send + Sync + 'static,
    T: Send + 'static,
    E: Display + Send + 'static,
{
    let world = Arc::new(World::new(world_size));
    let meshes = [(); 2].map(|()| Mesh::new(Arc::clone(&world), (0..world_size).collect()));
    let body = Arc::new(body);
    let (sender, receiver) = unbounded();
    for rank in 0..world_size {
        let seat = Seat { world: Arc::clone(&world), meshes: meshes.clone(), rank, timeout: options.timeout };
        let body = Arc::clone(&body);
        let outcomes = sender.clone();
        let started = threads::spawn(&format!("rank-{rank}"), move || seat.occupy(&*body, &outcomes));
        if let Err(error) = started {
            world.fail(rank, &format!("its thread cannot be started: {error}"));
            // The channel is unbounded and its receiver lives in this function.
            let _ = sender.send((rank, Err(Cause::Spawn(error))));
            (rank..world_size).for_each(|rank| world.ended(rank).raise());
            break;
        }
    }
    drop(sender);
    conclude(&world, collect(&world, world_size, &receiver, options.grace))
}

/// State of the world passed to a rank's thread.
struct Seat {
    world: Arc<World>,
    meshes: [Arc<Mesh>; 2],
    rank: usize,
    timeout: Duration,
}

impl Seat {
    fn occupy<T, E: Display>(
        self,
        body: &impl Fn(Communicator) -> Result<T, E>,
        outcomes: &Sender<(usize, Outcome<T, E>)>,
    ) {
        let outcome = match catch_unwind(AssertUnwindSafe(|| body(self.communicator()))) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(Cause::Error(error)),
            Err(payload) => Err(Cause::Panic(panic_message(&*payload))),
        };
        if let Err(cause) = &outcome {
            self.world.fail(self.rank, &cause.to_string());
        }
        // The end is signalled after the failure, so that a failed rank is not mistaken for one that ended
        // normally.
        self.world.ended(self.rank).raise();
        // The receiver is gone if this rank was abandoned.
        let _ = outcomes.send((self.rank, outcome));
    }

    fn communicator(&self) -> Communicator {
        let [control, data] = &self.meshes;
        let link = |mesh: &Arc<Mesh>| ThreadLink::new(Arc::clone(mesh), self.rank, self.timeout);
        let backend = HostBackend::new(link(data));
        Communicator::new(HostControl::new(link(control)), backend).of_threads(link(data))
    }
}

/// Collects the outcomes of all ranks; `None` for a rank that did not end in time after a failure.
fn collect<T, E: Display>(
    world: &World,
    world_size: usize,
    outcomes: &Receiver<(usize, Outcome<T, E>)>,
    grace: Duration,
) -> Vec<Option<Outcome<T, E>>> {
    let mut all: Vec<_> = (0..world_size).map(|_| None).collect();
    let mut deadline = None;
    loop {
        let failed = if deadline.is_none() { world.failed().receiver().clone() } else { never() };
        let at = deadline.map_or_else(never, crossbeam::channel::at);
        select! {
            recv(outcomes) -> outcome => match outcome {
                Ok((rank, outcome)) => all[rank] = Some(outcome),
                Err(_) => return all,
            },
            recv(failed) -> _ => deadline = Some(Instant::now() + grace),
            recv(at) -> _ => return all,
        }
    }
}

fn conclude<T, E: Display>(
    world: &World,
    outcomes: Vec<Option<Outcome<T, E>>>,
) -> Result<Vec<T>, RunError<E>> {
    let Some(failure) = world.failure() else {
        // Without a failure every rank has ended, and none with an error.
        return Ok(outcomes.into_iter().flatten().flatten().collect());
    };
    let abandoned = (0..outcomes.len()).filter(|rank| !world.ended(*rank).is_raised()).collect();
    let outcome = outcomes.into_iter().nth(failure.rank).flatten();
    let cause = match outcome {
        Some(Err(cause)) => cause,
        _ => Cause::Declared(failure.reason),
    };
    Err(RunError { rank: failure.rank, cause, abandoned })
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
