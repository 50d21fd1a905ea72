//! Ranks as processes connected over TCP, started by a launcher other than MPI's.
//!
//! A launcher such as `torchrun` gives each process its rank, the world size, and the address and port of
//! rank 0. [`start`] joins the job. Each rank connects to rank 0, and both prove that they know the job's
//! [`Secret`]. Rank 0 compares the ranks' settings and sends their addresses, and all ranks connect with each
//! other. Without a secret, ranks listen on their own host only. Every wait has a deadline.

mod address;
mod channel;
mod connection;
pub mod copies;
mod door;
mod error;
mod gather;
mod handshake;
mod hello;
mod join;
mod link;
mod lobby;
mod member;
mod own_addresses;
mod wires;

use std::io::ErrorKind;
use std::net::TcpStream;
use std::rc::Rc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use system::{fail_point, threads};

use crate::communicator::Communicator;
use crate::host::{HostBackend, HostControl};
use crate::processes::{CONTROL, DATA, Processes, Shared, World};
pub use address::is_of_this_host;
use address::{listen, reach};
use door::Door;
pub use error::StartError;
pub use handshake::Secret;
use link::TcpLink;
pub use member::Member;
pub use own_addresses::own_addresses;
use wires::Wires;

/// Number of open files besides the connections.
const OTHER_FILES: u64 = 256;

/// Joins the job, and waits for all its ranks. `timeout` limits the start, and later the silence of a peer.
///
/// # Errors
/// Ranks differ in settings, do not know the secret, are duplicated or do not arrive, or a port is in use.
pub fn start(member: &Member, timeout: Duration) -> Result<(World, Communicator), StartError> {
    fail_point::reach("TCP about to start");
    let Member { rank, world_size, .. } = *member;
    if rank >= world_size {
        return Err(StartError::Refused(format!("there is no rank {rank} among {world_size}")));
    }
    allow_files(world_size)?;
    let reach = reach(member, timeout)?;
    let listener = listen(reach, if rank == 0 { member.port } else { 0 }).map_err(|error| {
        let port = member.port;
        StartError::Refused(match error.kind() {
            ErrorKind::AddrInUse => {
                format!("port {port} of this host is in use by another program: choose another port")
            }
            _ => format!("rank {rank} cannot listen: {error}"),
        })
    })?;
    let door = Door::new(listener, member.secret.clone(), world_size)
        .map_err(|error| StartError::Absent(format!("rank {rank} cannot listen: {error}")))?;
    let streams = match rank {
        0 => gather::gather(member, door, timeout)?,
        _ => join::join(member, door, reach, timeout)?,
    };
    connect(member, streams, timeout)
}

/// Builds the communicator from the connections to all other ranks.
fn connect(
    member: &Member,
    streams: Vec<Option<TcpStream>>,
    timeout: Duration,
) -> Result<(World, Communicator), StartError> {
    let Member { rank, world_size, local_rank, local_size, .. } = *member;
    let unusable = |error: std::io::Error| {
        StartError::Absent(format!("rank {rank} cannot use its connections: {error}"))
    };
    let wires = Rc::new(Wires::new(rank, streams).map_err(unusable)?);
    let shared = Rc::new(Shared::new(rank, world_size, Rc::clone(&wires) as _, timeout));
    let link =
        |context| TcpLink::new(Rc::clone(&shared), Rc::clone(&wires), (0..world_size).collect(), context);
    let backend = HostBackend::new(link(DATA));
    let mut communicator = Communicator::new(HostControl::new(link(CONTROL)), backend);
    let local = |processes: &Processes| {
        let (index, count) = processes.on_host();
        let index = local_rank.unwrap_or(index);
        let local = (index, local_size.unwrap_or(count).max(index + 1));
        wires.share_processors(threads::processors() < local.1);
        local
    };
    let world = World::join(Rc::clone(&shared), &mut *communicator.control, local)?;
    Ok((world, communicator))
}

/// Raises the limit of open files (`ulimit -n`) to what the connections need.
///
/// # Errors
/// The limit cannot be raised.
fn allow_files(world_size: usize) -> Result<(), StartError> {
    let needed = world_size as u64 + OTHER_FILES;
    let limit = getrlimit(Resource::Nofile);
    let is_enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= needed);
    if is_enough(limit.current) {
        return Ok(());
    }
    let raised = Rlimit { current: Some(needed), ..limit };
    if is_enough(limit.maximum) && setrlimit(Resource::Nofile, raised).is_ok() {
        return Ok(());
    }
    Err(StartError::Refused(format!(
        "{world_size} ranks over TCP need {needed} open files, and the limit (ulimit -n) is {}",
        limit.maximum.unwrap_or_default()
    )))
}
