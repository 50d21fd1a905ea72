//! A rank's listener, which serves its connections side by side and waits for none of them.

use std::net::{IpAddr, TcpListener};
use std::time::{Duration, Instant};

use crate::tcp::channel::Channel;
use crate::tcp::handshake::{Handshake, Role, Secret};
use crate::tcp::hello::{HELLO_BYTES, Hello};

/// Time in which a connection must prove itself and name its rank.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time after which a connection that has proven nothing is closed if there are too many.
const SILENCE: Duration = Duration::from_secs(1);
/// Connections served at once, beyond one for each rank.
const STRANGERS: usize = 64;

/// A listener with the connections that have not named their rank yet.
#[derive(Debug)]
pub(super) struct Door {
    listener: TcpListener,
    secret: Option<Secret>,
    knocks: Vec<Knock>,
    most: usize,
    /// The last connection that was refused, and why.
    refused: Option<String>,
}

#[derive(Debug)]
struct Knock {
    from: IpAddr,
    until: Instant,
    state: State,
}

#[derive(Debug)]
enum State {
    Proving(Handshake),
    Proven(Channel),
}

#[derive(Debug)]
enum Step {
    Waiting(Knock),
    Arrived(Arrival),
}

/// A rank that has proven itself.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) channel: Channel,
    pub(super) from: IpAddr,
    pub(super) hello: Hello,
}

impl Door {
    pub(super) fn new(listener: TcpListener, secret: Option<Secret>, ranks: usize) -> Self {
        Door { listener, secret, knocks: Vec::new(), most: ranks + STRANGERS, refused: None }
    }

    /// The port of the listener.
    pub(super) fn port(&self) -> std::io::Result<u16> {
        self.listener.local_addr().map(|address| address.port())
    }

    /// The last connection that was refused, in words.
    pub(super) fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// Returns the ranks that have arrived since the last call, without waiting.
    pub(super) fn arrivals(&mut self) -> Vec<Arrival> {
        let mut arrivals = Vec::new();
        for knock in std::mem::take(&mut self.knocks) {
            let (from, is_late) = (knock.from, Instant::now() >= knock.until);
            match knock.advance(self.secret.as_ref()) {
                Ok(Step::Arrived(arrival)) => arrivals.push(arrival),
                Ok(Step::Waiting(_)) if is_late => self.refuse(from, "it did not name its rank in time"),
                Ok(Step::Waiting(knock)) => self.knocks.push(knock),
                Err(why) => self.refuse(from, &why),
            }
        }
        self.accept();
        arrivals
    }

    /// Returns whether another connection can be served. If there are too many, one that has been silent for
    /// long is closed, never one that may be about to prove itself; further ones wait in the system's queue.
    fn has_room(&mut self) -> bool {
        if self.knocks.len() < self.most {
            return true;
        }
        let (now, longest) = (Instant::now(), HANDSHAKE - SILENCE);
        let is_silent = |knock: &Knock| {
            matches!(knock.state, State::Proving(_)) && knock.until.saturating_duration_since(now) < longest
        };
        let Some(index) = self.knocks.iter().position(is_silent) else { return false };
        let silent = self.knocks.remove(index);
        self.refuse(silent.from, "there are too many connections");
        true
    }

    fn accept(&mut self) {
        for _ in 0..self.most {
            if !self.has_room() {
                return;
            }
            // An error ends the attempt, and the next call tries again.
            let Ok((stream, from)) = self.listener.accept() else { return };
            let from = from.ip().to_canonical();
            if self.secret.is_none() && !from.is_loopback() {
                self.refuse(from, "without PLIMSOLL_SECRET only connections of this host are served");
                continue;
            }
            let Ok(handshake) = Handshake::begin(stream, Role::Listens) else { continue };
            let until = Instant::now() + HANDSHAKE;
            self.knocks.push(Knock { from, until, state: State::Proving(handshake) });
        }
    }

    fn refuse(&mut self, from: IpAddr, why: &str) {
        self.refused = Some(format!("a connection from {from} was refused: {why}"));
    }
}

impl Knock {
    /// Goes on without waiting. Errors, in words: the connection is refused.
    fn advance(self, secret: Option<&Secret>) -> Result<Step, String> {
        let Knock { from, until, state } = self;
        let waiting = |state| Ok(Step::Waiting(Knock { from, until, state }));
        let mut channel = match state {
            State::Proven(channel) => channel,
            State::Proving(mut handshake) => {
                match handshake.poll(secret).map_err(|refusal| refusal.to_string())? {
                    true => handshake.into_channel(),
                    false => return waiting(State::Proving(handshake)),
                }
            }
        };
        match channel.parcel(HELLO_BYTES).map_err(|broken| broken.to_string())? {
            None => waiting(State::Proven(channel)),
            Some(parcel) => {
                let hello = Hello::decode(&parcel).ok_or("it did not name its rank")?;
                Ok(Step::Arrived(Arrival { channel, from, hello }))
            }
        }
    }
}
