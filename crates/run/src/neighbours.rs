//! Copies of a host's states in the memory of its neighbour.
//!
//! The first rank of each host receives the copies of the preceding host. The threads that write files also
//! send them, so no step waits.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use checkpoint::{FileOfState, IncomingFiles, MemoryWriter};
use collective::ControlChannel;
use collective::tcp::copies::{self, Receiver};
use collective::tcp::{Secret, own_addresses};
use serde::{Deserialize, Serialize};

use crate::error::Result;

/// The network addresses at which a host receives copies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Address {
    host: String,
    addresses: Vec<IpAddr>,
    /// The TCP port; 0 if the host receives nothing.
    port: u16,
}

impl Address {
    /// Returns all socket addresses of the host, its own IP addresses first and then those resolved from its
    /// name.
    fn socket_addresses(&self) -> Vec<SocketAddr> {
        let own = self.addresses.iter().map(|address| SocketAddr::new(*address, self.port));
        let named = (self.host.as_str(), self.port).to_socket_addrs().into_iter().flatten();
        own.chain(named).collect()
    }
}

/// Connects the `writer` of a rank on `host` to the neighbouring host. Returns the receiver of copies for
/// this host on the rank that owns it. Every rank must call this.
pub(crate) fn connect(
    writer: &mut MemoryWriter,
    (host, is_first): (&str, bool),
    control: &mut dyn ControlChannel,
) -> Result<Option<Receiver>> {
    let mut bytes = if control.rank() == 0 { Secret::random_bytes().unwrap_or_default() } else { Vec::new() };
    control.broadcast(0, &mut bytes)?;
    let secret = Secret::new(&bytes).ok();
    let receiver = secret.clone().filter(|_| is_first).and_then(|secret| receive(writer, host, secret));
    let port = receiver.as_ref().map_or(0, Receiver::port);
    let own = is_first.then(|| Address { host: host.to_owned(), addresses: own_addresses(), port });
    let all = control.all_gather(&serde_json::to_vec(&own).unwrap_or_default())?;
    let hosts: Vec<Address> =
        all.iter().filter_map(|text| serde_json::from_slice::<Option<_>>(text).ok().flatten()).collect();
    let index = hosts.iter().position(|address| address.host == host).unwrap_or(0);
    let next = hosts.get((index + 1) % hosts.len().max(1)).filter(|next| next.port > 0 && next.host != host);
    if let (Some(next), Some(secret)) = (next.cloned(), secret) {
        writer.set_neighbour(move |file| send(&next, &secret, file));
    }
    Ok(receiver)
}

fn receive(writer: &MemoryWriter, host: &str, secret: Secret) -> Option<Receiver> {
    let incoming = writer.incoming();
    let own = host.to_owned();
    let started =
        Receiver::start(secret, move |name, bytes, from| store(&incoming, (&own, name), bytes, from));
    started
        .inspect_err(|error| tracing::warn!("this host keeps no copies of states of another one: {error}"))
        .ok()
}

/// Stores a received file of another host's state, named `HOST/STEP/FILE`, where HOST receives it. Refuses
/// files for other hosts, which may have the same IP address in networks of their own.
fn store(
    incoming: &IncomingFiles,
    (own, name): (&str, &str),
    bytes: u64,
    from: &mut dyn Read,
) -> io::Result<()> {
    let mut parts = name.splitn(3, '/');
    let host = parts.next();
    let step = parts.next();
    let file = parts.next().unwrap_or_default();
    let step = step.and_then(|step| step.parse().ok());
    match step.filter(|_| host == Some(own)) {
        Some(step) => incoming.store((step, file, bytes), from),
        None => Err(io::Error::other("it is for another host")),
    }
}

fn send(next: &Address, secret: &Secret, file: &FileOfState<'_>) -> io::Result<()> {
    let name = format!("{}/{}/{}", next.host, file.step, file.name);
    copies::send(&next.socket_addresses(), secret, (&name, file.bytes), || File::open(file.path))
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", next.host)))
}
