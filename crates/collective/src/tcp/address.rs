//! Addresses on which ranks listen and at which they find rank 0.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use system::{terminal, threads};

use crate::tcp::error::StartError;
use crate::tcp::member::{Member, NOTICE};
use crate::tcp::own_addresses::own_addresses;

/// Interval between look-ups of a name without an address.
const LOOK_UP_AGAIN: Duration = Duration::from_millis(500);

/// Networks from which a rank can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// The rank's own host alone, at this address.
    Host(IpAddr),
    /// Every network.
    Network,
}

/// Returns the networks from which the ranks of a job can be reached: without a secret, only their own host.
///
/// # Errors
/// Without a secret, the address of rank 0 is not this host's, or is not found within `timeout`.
pub(super) fn reach(member: &Member, timeout: Duration) -> Result<Reach, StartError> {
    if member.local_size == Some(member.world_size) {
        // No rank is on another host, whatever this host's name is.
        return Ok(Reach::Host(Ipv4Addr::LOCALHOST.into()));
    }
    if member.secret.is_some() {
        return Ok(Reach::Network);
    }
    let address = &member.address;
    let addresses = await_addresses(member, timeout)?;
    match addresses.iter().map(SocketAddr::ip).find(|address| !address.to_canonical().is_loopback()) {
        None => Ok(Reach::Host(addresses.first().map_or(Ipv4Addr::LOCALHOST.into(), SocketAddr::ip))),
        Some(other) => {
            let resolved = if other.to_string() == *address { String::new() } else { format!(" ({other})") };
            Err(StartError::Refused(format!(
                "MASTER_ADDR={address}{resolved} can be reached from other hosts, and PLIMSOLL_SECRET is not set: \
                 set it to the same secret of at least 16 bytes on all ranks"
            )))
        }
    }
}

/// Looks up the addresses of rank 0's host, whose name may appear after this rank starts.
///
/// # Errors
/// The name has no address within `timeout`.
fn await_addresses(member: &Member, timeout: Duration) -> Result<Vec<SocketAddr>, StartError> {
    let Member { address, port, .. } = member;
    let begun = Instant::now();
    let deadline = Instant::now() + timeout;
    let mut notice = Some(NOTICE).filter(|notice| member.rank <= 1 && *notice < timeout);
    loop {
        let why = match resolve(address, *port, deadline) {
            Ok(addresses) => return Ok(addresses),
            Err(why) => why,
        };
        let seconds = timeout.as_secs();
        if Instant::now() + LOOK_UP_AGAIN >= deadline {
            let text = format!("the address {address} of rank 0 was not found within {seconds} s: {why}");
            return Err(StartError::Absent(text));
        }
        if notice.take_if(|notice| begun.elapsed() >= *notice).is_some() {
            terminal::say(&format!(
                "plimsoll: waiting for the address {address} of rank 0 {seconds} s at most: {why}"
            ));
        }
        std::thread::sleep(LOOK_UP_AGAIN);
    }
}

/// Returns whether a name or address is this host's; gives up after `within`.
#[must_use]
pub fn is_of_this_host(name: &str, within: Duration) -> bool {
    let own = own_addresses();
    let addresses = resolve(name, 0, Instant::now() + within).unwrap_or_default();
    addresses
        .iter()
        .map(|address| address.ip().to_canonical())
        .any(|ip| ip.is_loopback() || own.contains(&ip))
}

/// Listens on a port; 0 picks a free one.
pub(super) fn listen(reach: Reach, port: u16) -> io::Result<TcpListener> {
    let listener = match reach {
        Reach::Host(address) => TcpListener::bind((address, port)),
        Reach::Network => match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)) {
            Err(error) if error.kind() != ErrorKind::AddrInUse => {
                // The host has no IPv6.
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
            }
            bound => bound,
        },
    }?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Returns the addresses of a name. The error is a description, also if there is none before the deadline.
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
