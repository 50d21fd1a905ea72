//! A listener and its connections that have not yet proven the job's secret. One thread serves all of them
//! concurrently without blocking on any.
//!
//! Strangers cannot keep a rank out. If there are too many connections, one is closed: from the address with
//! the most connections, the oldest, preferring connections that have sent no greeting. Ranks greet at once.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};

use crate::tcp::channel::Channel;
use crate::tcp::handshake::{Handshake, Role, Secret};

/// Event token of the listener; then of the waker, and of the first connection.
const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
const FIRST: usize = 2;
/// Maximum number of connections accepted before open connections are served again.
const AT_ONCE: usize = 256;
/// Maximum number of events taken from the system at once.
const EVENTS: usize = 256;
/// Pause after the system refuses to accept, for example because too many files are open.
const PAUSE: Duration = Duration::from_millis(20);

/// The limits of a lobby.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Maximum number of connections at a time.
    pub(super) most: usize,
    /// Time allowed for a connection to prove the secret.
    pub(super) patience: Duration,
}

/// A listener, and its connections that have not yet proven the secret.
#[derive(Debug)]
pub(super) struct Lobby {
    listener: TcpListener,
    secret: Option<Secret>,
    limits: Limits,
    poll: Poll,
    events: Events,
    /// Connections by token, the oldest first.
    callers: BTreeMap<usize, Caller>,
    next: usize,
    /// Whether more connections may be waiting at the listener.
    may_accept: bool,
    /// Description of the last refused connection.
    refused: Option<String>,
}

/// A connection that has not yet proven the secret.
#[derive(Debug)]
struct Caller {
    from: IpAddr,
    until: Instant,
    handshake: Handshake,
}

/// A connection whose other end has proven the secret.
#[derive(Debug)]
pub(super) struct Proven {
    pub(super) channel: Channel,
    pub(super) from: IpAddr,
}

impl Lobby {
    /// Takes over a non-blocking listener.
    pub(super) fn new(listener: TcpListener, secret: Option<Secret>, limits: Limits) -> io::Result<Self> {
        let poll = Poll::new()?;
        poll.registry().register(&mut SourceFd(&listener.as_raw_fd()), LISTENER, Interest::READABLE)?;
        Ok(Lobby {
            listener,
            secret,
            limits,
            poll,
            events: Events::with_capacity(EVENTS),
            callers: BTreeMap::new(),
            next: FIRST,
            may_accept: true,
            refused: None,
        })
    }

    /// The port of the listener.
    pub(super) fn port(&self) -> io::Result<u16> {
        self.listener.local_addr().map(|address| address.port())
    }

    /// Returns a handle that ends a wait of [`Lobby::proven`].
    pub(super) fn waker(&self) -> io::Result<Arc<Waker>> {
        Waker::new(self.poll.registry(), WAKER).map(Arc::new)
    }

    /// Description of the last refused connection.
    pub(super) fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    pub(super) fn refuse(&mut self, from: IpAddr, why: &str) {
        self.refused = Some(format!("a connection from {from} was refused: {why}"));
    }

    /// Waits at most `wait` for an event, and returns the connections that have proven the secret since the
    /// last call.
    pub(super) fn proven(&mut self, wait: Duration) -> Vec<Proven> {
        let wait = if self.may_accept { Duration::ZERO } else { wait.min(self.until_next_limit()) };
        if self.poll.poll(&mut self.events, Some(wait)).is_err() {
            // A signal interrupted the wait, or memory is short for the moment.
            return Vec::new();
        }
        let ready: Vec<Token> = self.events.iter().map(mio::event::Event::token).collect();
        self.may_accept |= ready.contains(&LISTENER);
        let advanced = ready.into_iter().filter_map(|token| self.advance(token.0));
        let mut proven: Vec<_> = Vec::new();
        proven.extend(advanced);
        self.dismiss_late();
        proven.extend(self.accept());
        proven
    }

    /// Time until the next connection exceeds its time limit.
    fn until_next_limit(&self) -> Duration {
        let next = self.callers.values().next();
        next.map_or(Duration::MAX, |caller| caller.until.saturating_duration_since(Instant::now()))
    }

    /// Advances a connection; returns it once it has proven the secret.
    fn advance(&mut self, token: usize) -> Option<Proven> {
        let secret = self.secret.as_ref();
        let polled = self.callers.get_mut(&token)?.handshake.poll(secret);
        match polled {
            Ok(false) => None,
            Ok(true) => {
                let Caller { from, handshake, .. } = self.leave(token)?;
                Some(Proven { channel: handshake.into_channel(), from })
            }
            Err(refusal) => {
                let Caller { from, .. } = self.leave(token)?;
                self.refuse(from, &refusal.to_string());
                None
            }
        }
    }

    /// Removes a connection from the lobby.
    fn leave(&mut self, token: usize) -> Option<Caller> {
        let caller = self.callers.remove(&token)?;
        // A descriptor that cannot be deregistered is forgotten by the system when it is closed.
        let _ = self.poll.registry().deregister(&mut SourceFd(&caller.handshake.descriptor()));
        Some(caller)
    }

    /// Closes connections that exceeded their time limit. They are ordered by start time.
    fn dismiss_late(&mut self) {
        let now = Instant::now();
        while let Some((token, _)) = self.callers.first_key_value().filter(|(_, caller)| caller.until <= now)
        {
            self.dismiss(*token, "it did not prove itself in time");
        }
    }

    fn dismiss(&mut self, token: usize, why: &str) {
        if let Some(Caller { from, .. }) = self.leave(token) {
            self.refuse(from, why);
        }
    }

    /// Accepts connections; returns those that have already proven the secret.
    fn accept(&mut self) -> Vec<Proven> {
        let mut proven = Vec::new();
        for _ in 0..AT_ONCE {
            if !self.may_accept {
                break;
            }
            let (stream, from) = match self.listener.accept() {
                Ok((stream, from)) => (stream, from.ip().to_canonical()),
                Err(error) => {
                    self.may_accept = error.kind() != io::ErrorKind::WouldBlock;
                    if self.may_accept {
                        std::thread::sleep(PAUSE);
                    }
                    break;
                }
            };
            if self.secret.is_none() && !from.is_loopback() {
                self.refuse(from, "without PLIMSOLL_SECRET only connections of this host are served");
                continue;
            }
            let Ok(handshake) = Handshake::begin(stream, Role::Listens) else { continue };
            let token = self.next;
            self.next += 1;
            let events = Interest::READABLE | Interest::WRITABLE;
            let registry = self.poll.registry();
            if registry.register(&mut SourceFd(&handshake.descriptor()), Token(token), events).is_err() {
                continue;
            }
            let until = Instant::now() + self.limits.patience;
            self.callers.insert(token, Caller { from, until, handshake });
            proven.extend(self.advance(token));
            if self.callers.len() > self.limits.most
                && let Some(token) = self.most_dispensable()
            {
                self.dismiss(token, "there are too many connections");
            }
        }
        proven
    }

    /// Returns the connection to close when there are too many.
    fn most_dispensable(&self) -> Option<usize> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        self.callers.values().for_each(|caller| *counts.entry(caller.from).or_default() += 1);
        let most = counts.values().max()?;
        let of_fullest = self.callers.iter().filter(|(_, caller)| counts.get(&caller.from) == Some(most));
        of_fullest
            .min_by_key(|(token, caller)| (caller.handshake.has_greeted(), **token))
            .map(|(token, _)| *token)
    }
}
