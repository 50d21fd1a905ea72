//! Addresses at which ranks listen and reach rank 0.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Instant;

use system::threads;

use crate::tcp::error::StartError;
use crate::tcp::member::Member;

/// From where a rank can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// From its own host, at this address.
    Host(IpAddr),
    /// From every network.
    Network,
}

/// Returns from where the ranks of a job can be reached: without a secret, only from their own host.
///
/// # Errors
/// Without a secret, an address of rank 0 that is not its host's own.
pub(super) fn reach(member: &Member, deadline: Instant) -> Result<Reach, StartError> {
    if member.local_size == Some(member.world_size) {
        // No rank is on another host, whatever the name of this one is.
        return Ok(Reach::Host(Ipv4Addr::LOCALHOST.into()));
    }
    if member.secret.is_some() {
        return Ok(Reach::Network);
    }
    let Member { address, port, .. } = member;
    let addresses = resolve(address, *port, deadline)
        .map_err(|why| StartError::Absent(format!("the address {address} of rank 0 is not found: {why}")))?;
    match addresses.iter().map(SocketAddr::ip).find(|address| !address.to_canonical().is_loopback()) {
        None => Ok(Reach::Host(addresses.first().map_or(Ipv4Addr::LOCALHOST.into(), SocketAddr::ip))),
        Some(other) => {
            let of = if other.to_string() == *address { String::new() } else { format!(" ({other})") };
            Err(StartError::Refused(format!(
                "MASTER_ADDR={address}{of} can be reached from other hosts, and PLIMSOLL_SECRET is not set: \
                 set it to the same secret of at least 16 bytes on all ranks"
            )))
        }
    }
}

/// Listens on a port, 0 for any.
pub(super) fn listen(reach: Reach, port: u16) -> io::Result<TcpListener> {
    let listener = match reach {
        Reach::Host(address) => TcpListener::bind((address, port)),
        Reach::Network => match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)) {
            Err(error) if error.kind() != ErrorKind::AddrInUse => {
                // A host without IPv6.
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
            }
            bound => bound,
        },
    }?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Returns the addresses of a name. Errors, in words: there is none before the deadline.
pub(super) fn resolve(name: &str, port: u16, deadline: Instant) -> Result<Vec<SocketAddr>, String> {
    let bare = name.trim_start_matches('[').trim_end_matches(']').to_owned();
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    // The system's look-up cannot be interrupted.
    let (sender, receiver) = channel();
    let look_up = move || {
        let addresses = (bare.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        // The receiver is gone after the deadline.
        let _ = sender.send(addresses.map_err(|error| error.to_string()));
    };
    threads::spawn("resolve", look_up).map_err(|error| format!("no thread can be started: {error}"))?;
    match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(Ok(addresses)) if addresses.is_empty() => Err("the name has no address".to_owned()),
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            Err("the name was not looked up in time".to_owned())
        }
    }
}
