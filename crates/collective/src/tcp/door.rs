//! A rank's listener for connections of other ranks. Serves all connections concurrently and never blocks.

use std::net::{IpAddr, TcpListener};
use std::time::{Duration, Instant};

use crate::tcp::channel::Channel;
use crate::tcp::handshake::Secret;
use crate::tcp::hello::{HELLO_BYTES, Hello};
use crate::tcp::lobby::{Limits, Lobby, Proven};

/// Time allowed for a connection to prove the secret, and again to name its rank.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(10);
/// Connections served at once, beyond one per rank.
const STRANGERS: usize = 64;

/// A listener with its connections that have not named their rank yet.
#[derive(Debug)]
pub(super) struct Door {
    lobby: Lobby,
    /// Connections that have proven the secret, the oldest first, each with its deadline.
    proven: Vec<(Proven, Instant)>,
    most: usize,
}

/// A rank that has connected, proven the secret and named itself.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) channel: Channel,
    pub(super) from: IpAddr,
    pub(super) hello: Hello,
}

impl Door {
    /// Creates the listener of a job of `ranks` ranks.
    pub(super) fn new(listener: TcpListener, secret: Option<Secret>, ranks: usize) -> std::io::Result<Self> {
        let most = ranks + STRANGERS;
        let lobby = Lobby::new(listener, secret, Limits { most, patience: HANDSHAKE })?;
        Ok(Door { lobby, proven: Vec::new(), most })
    }

    /// The port of the listener.
    pub(super) fn port(&self) -> std::io::Result<u16> {
        self.lobby.port()
    }

    /// Description of the last refused connection.
    pub(super) fn refused(&self) -> Option<&str> {
        self.lobby.refused()
    }

    /// Returns the ranks that have arrived since the last call, without waiting.
    pub(super) fn arrivals(&mut self) -> Vec<Arrival> {
        let until = Instant::now() + HANDSHAKE;
        self.proven.extend(self.lobby.proven(Duration::ZERO).into_iter().map(|proven| (proven, until)));
        // A job has fewer ranks, so the oldest connections will not name one.
        let surplus = self.proven.len().saturating_sub(self.most);
        self.proven.drain(..surplus);
        let mut arrivals = Vec::new();
        for (mut proven, until) in std::mem::take(&mut self.proven) {
            let from = proven.from;
            match proven.channel.parcel(HELLO_BYTES) {
                Ok(None) if Instant::now() >= until => {
                    self.lobby.refuse(from, "it did not name its rank in time");
                }
                Ok(None) => self.proven.push((proven, until)),
                Ok(Some(parcel)) => match Hello::decode(&parcel) {
                    Some(hello) => arrivals.push(Arrival { channel: proven.channel, from, hello }),
                    None => self.lobby.refuse(from, "it did not name its rank"),
                },
                Err(broken) => self.lobby.refuse(from, &broken.to_string()),
            }
        }
        arrivals
    }
}
